#!/bin/sh
# seeds.sh FOLDER: writes small inputs to begin fuzzing with, FOLDER/TARGET/*. The first byte of each
# picks a chunk size, but for attach, baseline, buckets, topology and verify.
set -eu
out=${1:?usage: seeds.sh FOLDER}
for target in align allocator attach baseline buckets csv et held json kineto load log memory mxnet probes recording replay runmeta snapshot stages timeline topology verify xplane; do
    mkdir -p "$out/$target"
done
put() { printf '%b' "$2" >"$out/$1"; }

zeros() { head -c "$1" /dev/zero; }
{ printf '\024\000\000\000\000\000\000\000req' && zeros 29 && printf '\003\000\000\000\001\000\000\000' && zeros 8 && printf '\147\022\000\000'; } >"$out/attach/request"
{ printf '\020\000\000\000\000\000\000\000ctxt' && zeros 28 && printf '\000\000\000\000\147\022\000\000' && zeros 8; } >"$out/attach/context"

# facts: clocks, what it is, two times of eight bytes
{
    printf A
    for i in 1 2 3 4 5 6; do
        put align/fact "\\000\\140\\000\\000\\000\\00$i\\000\\000\\000\\000\\000\\020\\000\\000\\000\\000\\000\\000"
        cat "$out/align/fact"
        put align/fact "\\001\\140\\000\\000\\000\\00$i\\000\\000\\000\\000\\000\\040\\000\\000\\000\\000\\000\\000"
        cat "$out/align/fact"
    done
} >"$out/align/two"
{ printf '\002' && head -c 360 "$0"; } >"$out/align/any"

# a plane "/host:CPU" with a line of one event, and its name "a:B"; a graph of a node "a" that takes "b"
host='\022\011/host:CPU' line='\032\031\010\005\022\005tf_x/\030\144\042\014\010\001\020\350\007\030\320\017\042\002\010\001'
name='\042\013\010\001\022\007\010\001\022\003a:B' node='\012\017\012\001a\022\003Mul\032\001b\032\002^c'
put xplane/behind "A\\012\\063$host$line$name"
put xplane/before "B\\012\\063$host$name$line"
put xplane/cut "C\\012\\063$host$line"
put xplane/long 'D\012\377\377\377\377\377\377\377\377\377\001'
put runmeta/graph "E$node"
put runmeta/partition "F\\032\\021$node"
put runmeta/function "G\\042\\023\\012\\021$node"
# a step of a session: a worker received what a parameter server sent
put runmeta/session 'J\012\364\001\012\260\001\012)/job:worker/replica:0/task:0/device:CPU:0\022x\012\012RecvTensor\020\012(\005Bf[4B]\040[1Mb/s]\040e\040from\040/job:ps/replica:0/task:0/device:CPU:0\040to\040/job:worker/replica:0/task:0/device:CPU:0\022\011\012\003mul\020\020(\002\012?\012\045/job:ps/replica:0/task:0/device:CPU:0\022\015\012\007_SOURCE\020\001(\001\022\007\012\001v\020\003(\002\032\356\001\012\271\001\012\001s\022\005_Send\042\045/job:ps/replica:0/task:0/device:CPU:0*\022\012\013tensor_name\022\003\022\001e*6\012\013send_device\022\047\022\045/job:ps/replica:0/task:0/device:CPU:0*:\012\013recv_device\022+\022)/job:worker/replica:0/task:0/device:CPU:0\0120\012\001v\022\004Read\042\045/job:ps/replica:0/task:0/device:CPU:0\032\372\001\012\275\001\012\001r\022\005_Recv\042)/job:worker/replica:0/task:0/device:CPU:0*\022\012\013tensor_name\022\003\022\001e*6\012\013send_device\022\047\022\045/job:ps/replica:0/task:0/device:CPU:0*:\012\013recv_device\022+\022)/job:worker/replica:0/task:0/device:CPU:0\0128\012\003mul\022\003Mul\032\001r\042)/job:worker/replica:0/task:0/device:CPU:0'
put runmeta/cut "H\\032\\100$node"
put runmeta/deep 'I\032\020\012\016\052\014\012\001s\022\007\012\005\012\003\012\001\012'

# settings, then requests of 8 bytes each
put allocator/settings 'max_split_size_mb:64,roundup_power2_divisions:[64:8,4:2,>:4],garbage_collection_threshold:0.5,per_process_memory_fraction:0.5\000\000\001\000\024\000\000\000\000\001\001\000\000\000\000\000\000'
{ printf 'expandable_segments:True\000' && head -c 2000 "$0"; } >"$out/allocator/expandable"
{ printf 'large_segment_size_mb:33,max_split_size_mb:33\000' && head -c 3000 "$0" | tail -c 1500; } >"$out/allocator/any"

# a pipeline of two stages with two data-parallel ranks; model chunks; times within steps
rows='optype,step,start_ts,duration,stage,dp_rank,rank,seq_id,mc,mb_id\n'
for step in 0 1; do
    for rank in 0 1 2 3; do
        at="$((rank / 2)),$((rank % 2)),$rank"
        rows="${rows}forward-compute,$step,0.1,0.2,$at,0,0,0\\nforward-compute,$step,0.3,0.2,$at,1,1,0\\nbackward-compute,$step,0.6,0.3,$at,0,1,0\\n"
        rows="${rows}backward-compute,$step,0.9,0.3,$at,1,0,0\\nforward-send,$step,0.3,0.01,$at,0,,\\nforward-recv,$step,0.3,0.02,$at,0,,\\n"
        rows="${rows}backward-send,$step,0.5,1e-2,$at,0,-1,-1\\nbackward-recv,$step,0.5,0.02,$at,0,-1,-1\\nparams-all-gather,$step,0,0.1,$at,0,0,\\n"
        rows="${rows}grads-reduce-scatter,$step,1.2,0.1,$at,0,0,\\noptimizer-clip-main-grad,$step,1.3,0.1,$at,0,,\\noptimizer,$step,1.4,0.1,$at,0,,\\n"
    done
done
put stages/csv "A$rows"
put stages/alone 'Aoptype,step,start_ts,duration,stage,dp_rank,rank,seq_id,mc,mb_id\nforward-compute,0,0.1,0.2,0,0,0,0,0,0\n'
put stages/units 'BOp_Type,start_us,duration_ns,step,pp_rank\ngc,1.5,20,7,0\ngc,-1,nan,7,99999999999\n'
put stages/json 'C[{"name":"forward-compute","cat":"c","pid":0,"tid":0,"ts":1.5,"dur":2,"ph":"X","args":{"step":3,"model_chunk":0,"mb_id":0,"seq_id":0}},{"name":"forward-send","pid":0,"tid":1,"ts":3.5,"dur":1,"ph":"X","args":{"step":3,"model_chunk":-1,"mb_id":-1,"seq_id":0}},{"name":"forward-recv","pid":0,"tid":6,"ts":3.5,"dur":1,"ph":"X","args":{"step":3,"seq_id":0}},{"name":"forward-compute","pid":0,"tid":5,"ts":4.5,"dur":2,"ph":"X","args":{"step":3,"seq_id":0}},{"name":"thread_name","pid":0,"tid":0,"ph":"M","args":{"name":"PP rank 0, TP rank 0, compute"}},{"name":"thread_name","pid":0,"tid":1,"ph":"M","args":{"name":"PP rank 0, TP rank 0, pp-comm"}},{"name":"thread_name","pid":0,"tid":5,"ph":"M","args":{"name":"PP rank 1, TP rank 0, compute"}},{"name":"thread_name","pid":0,"tid":6,"ph":"M","args":{"name":"PP rank 1"}}]'

put json/values 'A{"a":[1,-2.5e3,"x\\u00e9\\\\\\"",null,true,NaN],"bb":{"c":"]}"},"skip":[[1,2],"[\\"]"],"ddd":18446744073709551615}'
put json/cut '\000\012\173\212'
put log/endless '\000\012\016\010\001\362\362\362\362\362\362\362\362\362\362\362\362'
put json/open 'B[{"ph":"X"},{"ph":'
put json/deep 'C[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]'
put json/text '\001byteps.BytePSPushPull.12: 65536 65537\n'
put json/et 'D{"schema":"1.0.1","pid":3,"nodes":[]}'

# what is known by sight only
put json/sqlite 'ESQLite format 3\0000 CREATE TABLE rocpd_string'
put json/flight 'F\0200\0002}q\0000(X\0011\0000\0000\0000nccl_versionq\0001'
put json/chakra 'G\0022\0022\0020\0012\0006schema\0352\0001\00051.0.1 and then more messages, all behind their lengths'
put json/perfetto 'H\0012\0020\0120\0001\0100\0200\0001 more of it'
put json/events 'I[{"ph":"M"},{"ph":"X","pid":"CPU functions","args":{"BeginNs":"1"}},{"ph":"b","cat":"COLL"}]'
put json/members 'J{"entries":[{"profiling_name":"nccl:send"}],"nodes":[{"data_deps":[]}],"coll_perf":{}}'
put json/table 'K"Index","KernelName","BeginNs"\n'

put topology/whole '{"schema":"dpro.topology/1","note":["any"],"ranks_per_host":8,"intra":{"bytes_per_s":450e9,"payload":0.824,"latency_ns":3400},"inter":{"bytes_per_s":50000000000,"latency_ns":14000.5,"rails":8,"note":""}}'
put topology/least '{"inter":{"bytes_per_s":1e3},"intra":{"bytes_per_s":1e15},"ranks_per_host":1,"schema":"dpro.topology/1"}'
put topology/wrong '{"schema":"dpro.topology/1","ranks_per_host":-8,"intra":[{}]}'
put topology/cut '{"schema":"dpro.topology/1","inter":{"rails":'
put topology/name '2x400g'

put baseline/saved '{"schema":"dpro.diagnose/1","version":"0.1.0","verdict":"v","framework":"pytorch","world_size":2,"iteration_ms":530.621494,"ideal_ms":409.403032,"measured_ms":[487.336090,527.910154,538.642125],"causes":[{"cause":"communication","title":"communication that nothing hides","blame_ms":98.758567,"uncertainty_ms":4.699314,"parts":[{}]},{"cause":"small_or_unsure","title":"","blame_ms":22.459895,"uncertainty_ms":null}]}'
put baseline/large '{"schema":"dpro.diagnose/1","world_size":-9223372036854775808,"iteration_ms":1e12,"ideal_ms":1000000000000,"measured_ms":[1e12,0,-1,NaN,"3"],"causes":[{"cause":"launch","title":"\\u0001\\\\","blame_ms":-1e12,"uncertainty_ms":9e12},{"cause":"launch","blame_ms":1e12}]}'
put baseline/least '{"schema":"dpro.diagnose/1","iteration_ms":0.000001,"ideal_ms":0.000001}'
put baseline/wrong '{"schema":"dpro.diagnose/1","causes":[{"cause":"launch","blame_ms":-9223372036854.775808}],"iteration_ms":1}'
put baseline/later '{"schema":"dpro.diagnose/2"}'

put buckets/lists '[["a","c"],["d"],["b"]]'
put buckets/plan '{"schema":"dpro.plan/1","communication":{"compression":"bf16","buckets":[{"parameters":["a","d"],"partitions":3,"priority":-1},{"model":0,"parameters":["c","b"]}]},"more":[{}]}'
put buckets/servers '{"schema":"dpro.plan/1","communication":{"servers":3,"buckets":[{"parameters":["a","d"],"server":2},{"parameters":["c","b"],"server":0}]}}'
put buckets/memory '{"schema":"dpro.plan/3","memory":{"recompute":["blocks.0","blocks.1"],"micro_batches":2,"budget_bytes":null,"baseline_peak_bytes":9,"peak_bytes":5},"communication":{"buckets":[{"parameters":["a","d"]},{"parameters":["c","b"]}]}}'
put buckets/units '{"schema":"dpro.plan/5","job":{"framework":"pytorch","world_size":2,"models":[]},"sharding":{"units":[{"name":"blocks.0","reshard_after_forward":true},{"name":"","reshard_after_forward":false}]}}'
put buckets/computing '{"schema":"dpro.plan/4","computation":{"compile":["blocks.0","blocks.1"],"bf16":[""],"changes_numerics":true,"fused_ops":[]},"communication":{"buckets":[{"parameters":["a","d"]},{"parameters":["c","b"]}]}}'
put buckets/fused '{"schema":"dpro.plan/2","computation":{"fused_ops":[{"ops":["a","d"],"ranks":[0,1],"fused_ms":1.5,"apart_ms":2},{}],"more":0},"communication":{"buckets":[{"parameters":["a","d"]},{"parameters":["c","b"]}]}}'
put buckets/twice '[["a","b"],["a","c","d"]]'

put kineto/x 'A{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank":0,"world_size":2,"pg_config":[{"pg_name":"0","pg_desc":"d","ranks":[0,1]}]},"traceEvents":[\n  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 11,\n    "ts": 4458676522690.655, "dur": 156.777,\n    "args": {\n      "External id": 2049,"Record function id": 1909, "Sequence number": 1080, "Fwd thread id": 1, "Ev Idx": 0\n    }\n  },\n  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 11,\n    "ts": 4458676522790.655, "dur": 6.777,\n    "args": {\n      "External id": 2050,"Record function id": 1910\n    }\n  }],"baseTimeNanoseconds":17}'
put kineto/gpu 'B[{"ph":"X","cat":"kernel","name":"nccl","pid":0,"tid":"stream 7","ts":1,"dur":2,"args":{"correlation":5,"External id":5,"grid":[1,2,3],"Collective name":"allreduce","In msg nelems":10,"Process Group Ranks":"[0, 1]","Group size":2,"dtype":"Float","Seq":3}},{"ph":"X","cat":"cuda_sync","name":"Event Sync","pid":0,"tid":-1,"ts":1,"dur":2,"args":{"cuda_sync_kind":"Event Sync","wait_on_stream":7,"wait_on_cuda_event_record_corr_id":3}},{"ph":"X","cat":"gpu_memcpy","name":"m","pid":0,"tid":7,"ts":1,"dur":2,"args":{"bytes":64}}]'
put kineto/flows 'C[{"ph":"s","id":1,"pid":1,"tid":1,"ts":1,"cat":"fwdbwd","name":"f"},{"ph":"f","id":1,"pid":1,"tid":1,"ts":5,"cat":"fwdbwd","name":"f","bp":"e"},{"ph":"B","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1},{"ph":"E","pid":1,"tid":1,"ts":2},{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"t"}},{"ph":"X","cat":"cpu_op","name":"c10d::allreduce_","pid":1,"tid":1,"ts":1,"dur":-1,"args":{"Input Dims":[[[2,3],[4]],[]],"Input type":["","float"]}}'

put kineto/memory 'D{"traceEvents":[{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":1,"tid":1,"ts":3.5,"args":{"Total Reserved":0,"Total Allocated":64,"Bytes":64,"Device Id":-1,"Device Type":0,"Addr":94899859242688}},{"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":2,"args":{"Bytes":-9223372036854775808}},{"ph":"X","cat":"user_annotation","name":"dpro.module:a.0","pid":1,"tid":1,"ts":1,"dur":5},{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":5}]}'
# rows of accelerators: a category of their own; none, in processes with names; flows of such a kind
put kineto/rows 'E{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":9,"tid":300,"ts":1,"dur":5},{"ph":"X","cat":"mtia_kernel","name":"mm","pid":0,"tid":7,"ts":8,"dur":2,"args":{"stream":7,"correlation":3}},{"ph":"X","cat":"npu_op","name":"hcom_allReduce_","pid":0,"tid":"stream 8","ts":11,"dur":2},{"ph":"X","name":"ProfilerStep#1","pid":9,"tid":300,"ts":0,"dur":20},{"ph":"X","name":"MatMulV2","pid":2,"tid":5,"ts":8,"dur":3},{"ph":"X","name":"x","pid":3,"tid":300,"ts":2,"dur":1},{"ph":"X","name":"Free","pid":4,"tid":0,"ts":0,"dur":8},{"ph":"X","name":"Notify_Wait","pid":5,"tid":1,"ts":9,"dur":1},{"ph":"M","name":"process_name","pid":2,"args":{"name":"Hardware"}},{"ph":"M","name":"process_name","pid":5,"args":{"name":"Communication"}},{"ph":"M","name":"process_labels","pid":3,"args":{"labels":"CPU"}},{"ph":"s","cat":"async_npu","id":4,"pid":9,"tid":300,"ts":1,"name":"f"},{"ph":"f","cat":"async_npu","id":4,"pid":2,"tid":5,"ts":8,"name":"f"}]}'
put held/whole 'A{"schema":"dpro.memory/1","device":"cuda:1","when_ns":1790857026000000000,"capacity_bytes":null,"allocator":"max_split_size_mb:128,backend:native","backend":"pluggable","modules":[["","GPT"],["a.0"]],"blocks":[["parameter","a.0.weight",94899859242688,64],["bucket","",0,128],["gradient",1,2,3,4],["other"],5]}'
put probes/whole 'A{"schema":"dpro.probes/1","device":"cpu","device_name":"d","versions":{"torch":"2.13.0+cpu"},"threads":1,"probes":[{"class":"B","modules":[["a.0"],["a.1"]],"ways":{"compile":{"forward_ns":[8,9,7],"backward_ns":[20,21],"kept_bytes":77,"compile_ms":8.5,"graphs":1,"breaks":0},"eager":{"forward_ns":[10,9,11],"backward_ns":[20,22,21],"kept_bytes":99},"bf16":{"problem":"p"},"x":[1]},"batches":{"0.5":{"forward_ns":[4,5,6],"backward_ns":[9]},"z":{"forward_ns":[1e99,-3]}}},{"modules":[["a.0","a.1"],["a.2"],[],3]},7]}'
put snapshot/protocol2 'A\0200\0002}q\0000(X\0010\0000\0000\0000segmentsq\0001]q\0002}q\0003(X\0006\0000\0000\0000deviceq\0004K\0000X\0007\0000\0000\0000addressq\0005M\0000\0020X\0012\0000\0000\0000total_sizeq\0006M\0000\0010X\0006\0000\0000\0000streamq\0007K\0000X\0014\0000\0000\0000segment_typeq\0010X\0005\0000\0000\0000smallq\0011X\0017\0000\0000\0000segment_pool_idq\0012K\0000K\0001\0206q\0013X\0015\0000\0000\0000is_expandableq\0014\0210X\0006\0000\0000\0000blocksq\0015]q\0016(}q\0017(h\0005M\0000\0020X\0004\0000\0000\0000sizeq\0020M\0000\0002X\0005\0000\0000\0000stateq\0021X\0020\0000\0000\0000active_allocatedq\0022u}q\0023(h\0020M\0000\0006h\0021X\0010\0000\0000\0000inactiveq\0024ueuaX\0015\0000\0000\0000device_tracesq\0025]q\0026(]q\0027]q\0030(}q\0031(X\0006\0000\0000\0000actionq\0032X\0005\0000\0000\0000allocq\0033X\0004\0000\0000\0000addrq\0034\0212\0007\0000\0000\0000\0000\0000\0200\0000h\0020KMh\0007\0212\0006\0000\0000\0000\0000\0000\0001X\0007\0000\0000\0000time_usq\0035\0212\0007\0200\0324\0340d\0306\0134\0006X\0007\0000\0000\0000pool_idq\0036K\0000K\0000\0206q\0037u}q (h\0032X\0016\0000\0000\0000free_requestedq!h\0034\0212\0007\0000\0000\0000\0000\0000\0200\0000h\0020KMh\0007K\0000ueeX\0022\0000\0000\0000allocator_settingsq"}q#(X\0027\0000\0000\0000PYTORCH_CUDA_ALLOC_CONFq$X\0000\0000\0000\0000q\0045X\0034\0000\0000\0000garbage_collection_thresholdq&G?\0340\0000\0000\0000\0000\0000\0000uu.'
put snapshot/protocol4 'A\0200\0004\0225\0323\0001\0000\0000\0000\0000\0000\0000}\0224(\0214\0010segments\0224]\0224}\0224(\0214\0006device\0224K\0000\0214\0007address\0224M\0000\0020\0214\0012total_size\0224M\0000\0010\0214\0006stream\0224K\0000\0214\0014segment_type\0224\0214\0005small\0224\0214\0017segment_pool_id\0224K\0000K\0001\0206\0224\0214\0015is_expandable\0224\0210\0214\0006blocks\0224]\0224(}\0224(h\0005M\0000\0020\0214\0004size\0224M\0000\0002\0214\0005state\0224\0214\0020active_allocated\0224u}\0224(h\0020M\0000\0006h\0021\0214\0010inactive\0224ueua\0214\0015device_traces\0224]\0224(]\0224]\0224(}\0224(\0214\0006action\0224\0214\0005alloc\0224\0214\0004addr\0224\0212\0007\0000\0000\0000\0000\0000\0200\0000h\0020KMh\0007\0212\0006\0000\0000\0000\0000\0000\0001\0214\0007time_us\0224\0212\0007\0200\0324\0340d\0306\0134\0006\0214\0007pool_id\0224K\0000K\0000\0206\0224u}\0224(h\0032\0214\0016free_requested\0224h\0034\0212\0007\0000\0000\0000\0000\0000\0200\0000h\0020KMh\0007K\0000uee\0214\0022allocator_settings\0224}\0224(\0214\0027PYTORCH_CUDA_ALLOC_CONF\0224\0214\0000\0224\0214\0034garbage_collection_threshold\0224G?\0340\0000\0000\0000\0000\0000\0000uu.'
put snapshot/json 'B{"segments": [{"device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small", "segment_pool_id": [0, 1], "is_expandable": true, "blocks": [{"address": 4096, "size": 512, "state": "active_allocated"}, {"size": 1536, "state": "inactive"}]}], "device_traces": [[], [{"action": "alloc", "addr": 140737488355328, "size": 77, "stream": 1099511627776, "time_us": 1790857026000000, "pool_id": [0, 0]}, {"action": "free_requested", "addr": 140737488355328, "size": 77, "stream": 0}]], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.5}}'

put et/flat 'A{"schema":"1.0.1","pid":5,"nodes":[{"name":"aten::cat","id":208,"rf_id":173,"parent":207,"seq_id":440,"tid":1,"inputs":[[[9,202,0,1,8,"cpu"],[11,16,4,416,4,"cuda:0"]],0],"outputs":[[22,209,0,417,8,"cpu"]]}]}'
put et/chakra 'B{"schema":"1.1.1-chakra.0.0.4","pid":7,"nodes":[{"id":436,"name":"record_param_comms","ctrl_deps":435,"inputs":{"values":[[[433,434,0,53120,4,"cuda:0"]],33,["0","default_pg"],"broadcast",[]],"shapes":[[[53120]]],"types":["x"]},"outputs":{"values":[],"shapes":[],"types":[]},"attrs":[{"name":"rf_id","type":"uint64","value":114},{"name":"seq_id","type":"int64","value":-1},{"name":"tid","type":"uint64","value":1}]}]}'

put recording/rank 'A{"schema":"dpro.rank/1","rank":1,"world_size":2,"attempt":0,"complete":true,"pid":7,"process_groups":[{"name":"0","description":"d","ranks":[0,1]}],"models":[{"name":"m","parallel":"ddp","buckets":[{"parameters":[1,0],"size_bytes":24}],"parameters":[{"name":"a","shape":[2,2],"dtype":"float32","size_bytes":16},{"name":"b","shape":[2],"size_bytes":8}],"fsdp":{"units":[{"name":"u","parameters":[5]}]}}],"steps":{"before":[{"step":1,"start_ns":10,"end_ns":20}],"timing":[{"step":2,"start_ns":30,"end_ns":20}]}}'
put recording/twice 'A{"schema":"dpro.rank/1","models":[{"parameters":[{"name":"a","size_bytes":16}],"buckets":[{"parameters":[7]}],"buckets":[{"parameters":[0]}]}]}'
put recording/ranks 'A{"schema":"dpro.rank/1","process_groups":[{"name":"0","ranks":"none","description":"d"},{"ranks":20}]}'
put recording/job 'B{"schema":"dpro.job/1","world_size":2,"hosts":[]}'

hvd='{"name":"process_name","ph":"M","pid":0,"args":{"start_time_since_epoch_in_micros":1800000000000000}},{"name":"process_name","ph":"M","pid":1,"args":{"name":"g/w"}},{"ph":"i","name":"CYCLE_START","ts":9,"s":"g"},{"ph":"B","name":"NEGOTIATE_ALLREDUCE","ts":10,"pid":1},{"ph":"X","name":"1","ts":11,"pid":1,"dur":0},{"ph":"E","ts":12,"pid":1},{"ph":"B","name":"ALLREDUCE","ts":13,"pid":1},{"ph":"B","name":"MEMCPY_IN_FUSION_BUFFER","ts":14,"pid":1},{"ph":"E","ts":16,"pid":1},{"ph":"B","name":"GLOO_ALLREDUCE","ts":17,"pid":1},{"ph":"E","ts":30,"pid":1},{"ph":"E","ts":35,"pid":1,"args":{"dtype":"float32","shape":"[512, 10]"}}'
put timeline/horovod "A[$hvd,$hvd"
put timeline/cut "B[$hvd,{\"ph\":\"B\",\"na"
put timeline/era 'C[{"name":"process_name","ph":"M","pid":3,"args":{"name":"x.12_0"}},{"ph":"B","pid":3,"name":"QUEUE","ts":1},{"ph":"E","pid":3,"ts":3},{"ph":"B","pid":3,"name":"NCCL_ALLREDUCE","ts":4},{"ph":"E","pid":3,"ts":9},{"ph":"B","pid":3,"name":"QUEUE","ts":11}]'
put timeline/byteps 'E{"traceEvents":[{"ph":"X","args":{"name":"Comm.byteps.gradient_0"},"pid":"Comm.byteps.gradient_0","name":"Comm.byteps.gradient_0.PUSH","ts":1574685984662375,"dur":1074,"tid":"26148864","cat":"Comm"}]}'
put load/horovod "A{\"schemaVersion\":1,\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"g/w\",\"pid\":1,\"tid\":1,\"ts\":1800000000000010,\"dur\":2},{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"u\",\"pid\":1,\"tid\":1,\"ts\":1800000000000040,\"dur\":9}]}\\n==\\n[$hvd]"
put load/horovod-twice 'A[{"name":"CYCLE_START""ph":"B""ts":1,"pid":1}{"ph":"E""ts":6,"pid":1}{"ph":"B""ts":1,"pid":1}{"ph":"E""ts":6,"pid":1}{"ph":"B""ts":4,"pid":1}{"ph":"E""ts":6,"pid":1}'

# the same with both ranks and their calls: four messages of 48 + 5,120 bytes each way
calls() # calls RANK
{
    printf 't_start_ns,t_end_ns,rank,tid,conn,local,remote,dir,call,offset,requested,returned\n'
    for i in 0 1 2 3; do
        for side in "tx 0 5168" "rx 0 48" "rx 48 5120"; do
            set -- "$1" $side
            t=$((1800000000000018000 + i * 2000 + $3 * 10))
            printf '%d,%d,%d,7,1,10.0.0.%d:5,10.0.0.%d:5,%s,send,%d,%d,%d\n' $t $((t + 400)) "$1" $((1 + $1)) $((2 - $1)) "$2" $((i * 5168 + $3)) "$4" "$4"
        done
    done
}
rank() # rank RANK
{
    printf '{"schemaVersion":1,"distributedInfo":{"backend":"gloo","rank":%d,"world_size":2},"traceEvents":[{"ph":"X","cat":"cpu_op","name":"g/w","pid":1,"tid":1,"ts":1800000000000010,"dur":2},{"ph":"X","cat":"cpu_op","name":"u","pid":1,"tid":1,"ts":1800000000000040,"dur":9}]}' "$1"
}
{ printf A && rank 0 && printf '\n==\n' && rank 1 && printf '\n==\n[%s]\n==\n' "$hvd" && calls 0 && printf '\n==\n' && calls 1; } >"$out/load/horovod-ring"
# and with a profile that holds nothing, so that a log's process is another one than its rank
{ printf A && rank 0 && printf '\n==\n' && rank 1 | sed 's/traceEvents/nothing/' && printf '\n==\n[%s]\n==\n' "$hvd" && calls 0 && printf '\n==\n' && calls 1; } >"$out/load/horovod-lone"

# BytePS's own trace beside profiles: a tensor in two parts
{ printf A && rank 0 && printf '\n==\n' && rank 1 && printf '\n==\n{"traceEvents":[' && for part in 0 1; do for stage in PUSH PULL; do
    printf '{"ph":"X","args":{"name":"Comm.g/w"},"pid":"Comm.g/w","name":"Comm.g/w.%s","ts":180000000000001%d,"dur":2,"tid":"%d","cat":"Comm"},' $stage $((part + ${#stage})) $((65536 + part))
done; done && printf '{}]}'; } >"$out/load/byteps-own"


header=t_start_ns,t_end_ns,rank,tid,conn,local,remote,dir,call,offset,requested,returned,gloo_nbytes,gloo_opcode,gloo_prefix,gloo_tag,gloo_delta,gloo_len
put csv/gloo "A$header\n10,20,0,5,4,10.0.0.1:6,10.0.0.2:5,tx,writev,0,148,148,148,1,4,9,0,100\n30,40,0,5,4,[::1]%1f:6,[::1]%1f:5,rx,recv,0,48,48,48,3,4,9,0,100\n50,60,0,5,4,unix:7,unix:0,rx,read,48,1,1,,,,,,\n"
put csv/other 'B# op,local>peer,stream_offset,bytes,t0_ns,t1_ns(CLOCK_REALTIME),tid\nsendmsg,10.0.0.2:3>10.0.0.1:1,0,82,17,18,2\nzmq_msg_send,0x7f,0,5,1,2,3,00\n'
put csv/cut "C$header\r\n10,20,0,5,4,10.0.0.1:6,10.0.0.2:5,tx,writev,0,148,14"

put csv/zmq 'D# op,local>peer,stream_offset,bytes,t0_ns,t1_ns(CLOCK_REALTIME),tid\nsend,10.0.0.1:5>10.0.0.2:6,0,141,20,30,2\nzmq_msg_send,0x7f,2,128,10,11,3,08ffffffff071a6608021217080110091a0931302e37372e302e3220d5f802280050001217080010081a0931302e37372e302e3120e3ad0328005000\nzmq_msg_send,0x7f,2,24,10,11,3,0800200128013000380040a1084a03080b03500060016800\nzmq_msg_send,0x7f,2,8,12,13,3,0e00000000000000\nzmq_msg_send,0x7f,2,20480,12,13,3,\nzmq_msg_send,0x7f,0,4,12,13,3,00500000\nzmq_msg_recv,0x1,0,3,1,14,2,707338\nzmq_msg_recv,0x1,0,24,1,14,2,0800200028013000380040a1084a03080b03500060016800\nzmq_msg_recv,0x1,0,8,1,14,2,0e00000000000000\n'
sed "s/1a66\(0802121708011009\)1a0931302e37372e302e32/1a1b\11805180518051805188500/" "$out/csv/zmq" >"$out/csv/zmq-number" # an address that is a number
put csv/raw 'D# op,local>peer,stream_offset,bytes,t0_ns,t1_ns(CLOCK_REALTIME),tid\nsend,10.0.0.1:5>10.0.0.2:6,0,141,20,30,2\nzmq_msg_send,0x7f,0,172,8,9,3,0000000000000000020000000100000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001000000090000003132372e302e302e3100000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000090000000000000000000000\nzmq_msg_send,0x7f,2,100,10,11,3,00000000000000000000000000000000000000000000000000000000000000000100000000000000030000000300000000000000010000000000000000000000050000000000000000000000000000000000000000000000000000000000000000000000\nzmq_msg_send,0x7f,2,8,12,13,3,0500000000000000\nzmq_msg_send,0x7f,2,64,12,13,3,\nzmq_msg_send,0x7f,0,4,12,13,3,40000000\n'

put mxnet/profile 'A{"traceEvents":[{"ph":"M","args":{"name":"cpu/0"},"pid":0,"name":"process_name"},{"name":"Convolution","cat":"operator","ph":"B","ts":10,"pid":0,"tid":18300543871357970401},{"name":"Convolution","cat":"operator","ph":"E","ts":12,"pid":0,"tid":18300543871357970401},{"name":"KVStoreDistDefaultStoragePushPull","cat":"operator","ph":"B","ts":12,"pid":1,"tid":7},{"name":"KVStoreDistDefaultStoragePushPull","cat":"operator","ph":"E","ts":90,"pid":1,"tid":7},{"name":"MXNDArrayWaitAll","cat":"MXNET_C_API","ph":"b","ts":10,"id":5,"pid":8,"tid":5},{"name":"MXNDArrayWaitAll","cat":"MXNET_C_API","ph":"e","ts":95,"id":5,"pid":8,"tid":5}],"displayTimeUnit":"ms"}'
put mxnet/symbol 'B{"nodes":[{"op":"null","name":"data","inputs":[]},{"op":"null","name":"w","attrs":{"__shape__":"(2,)"},"inputs":[]},{"op":"FullyConnected","name":"fc","inputs":[[0,0,0],[1,0,0]]},{"op":"Flatten","name":"flat","inputs":[[2,0,0],[9,0,0]]}],"arg_nodes":[0,1],"heads":[[3,0,0]]}'
put mxnet/text 'CSymbol Outputs:\n\toutput[0]=fc(0)\nVariable:data\nVariable:w\n--------------------\nOp:FullyConnected, Name=fc\nInputs:\n\targ[0]=data(0) version=0\n\targ[1]=w(0) version=0\nAttrs:\n\tnum_hidden=2\n--------------------\nOp:_backward_FullyConnected, Name=fc_backward\nInputs:\n\targ[0]=fc(0)\n\targ[1]=nobody(0)\nControl deps:\n\tcdep[0]=fc\nTotal 5 MB allocated\n'

# logs are binary: struct log_header, then records, as tracer/record.h has them
python3 - "$out/log" <<'END'
import struct
import sys
folder = sys.argv[1]


def header(kind, rank):
    return (b"dprolog\0" + struct.pack("<4IiIQQ", 1, 152, kind, 7, rank, 0, 9, 9) + b"boot".ljust(40, b"\0")
            + b"node".ljust(64, b"\0"))


def record(kind, body, thread=5):
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<BBHI", kind, 1, 8 + len(body), thread) + body


def connection(number, local, remote):
    return record(16, struct.pack("<qIiIBBBBHHIQ", 5, number, 3, 0, 4, 1, 1, 1, local, remote, 0, 77)
                  + bytes([127, 0, 0, 1]).ljust(40, b"\0") * 2)


def call(number, direction, offset, size, start):
    return record(17, struct.pack("<IBBHqqQII", number, direction, 3, 0, start, start + 5, offset, size, size))


def gloo(number, direction, opcode, position, length, tag):
    return record(18, struct.pack("<IBBHQQQQ", number, direction, opcode, 0, position, 4 << 56 | tag << 24, length, 0))


def transport(rank):
    tx, rx = (0, 1) if rank == 0 else (1, 0)
    return (header(1, rank) + connection(1, 4000 + rank, 4001 - rank) + gloo(1, tx, 1, 0, 52, 3) + call(1, tx, 0, 60, 100)
            + call(1, tx, 60, 40, 110) + gloo(1, rx, 3, 0, 52, 3) + call(1, rx, 0, 48, 120)
            + record(3, struct.pack("<q40s", 90, b"timing")) + record(2, struct.pack("<IIQ", 1, 0, 4))
            + record(1, struct.pack("<qqQ", 1, 2, 3)) + record(99, b"later"))


def event(kind, number, parent, body):
    return record(33, struct.pack("<QQqqIiBBHI", number, parent, 10, 20, 1, 0, kind, 1, 0, 7) + body)


nccl = (header(2, 0) + record(32, struct.pack("<IiiiQII64s", 1, 0, 2, 1, 99, 22304, 4, b"name"))
        + record(4, struct.pack("<II48s", 1, 0, b"AllReduce"))
        + event(4, 12, 11, struct.pack("<qqqqQiI", 1, 2, 3, 4, 4096, 0, 0))
        + event(3, 11, 10, struct.pack("<qqqqQiiiIII", 1, 2, 3, 4, 4096, 1, 0, 2, 2048, 0, 0))
        + event(1, 10, 0, struct.pack("<QQQQQQIIIIiHH", 6, 10, 40, 1, 2, 0, 1, 1, 1, 1, 0, 2, 4)))
one, two = transport(0), transport(1)
for name, data in (("pair", one + two), ("one", one), ("nccl", nccl), ("cut", one[:-3])):
    with open(f"{folder}/{name}", "wb") as out:
        out.write(b"B" + bytes([128 if name == "pair" else 0]) + data)
END

# two profiles of a collective and the chunks that it sent: 5,000 bytes twice each way
chunks() # chunks RANK
{
    printf 't_start_ns,t_end_ns,rank,tid,conn,local,remote,dir,call,offset,requested,returned\n'
    for i in 0 1; do
        for side in tx rx; do
            printf '%d,%d,%d,7,1,10.0.0.%d:5,10.0.0.%d:5,%s,sendmsg,%d,5000,5000\n' $((110 + i * 200)) $((150 + i * 200)) "$1" $((1 + $1)) $((2 - $1)) $side $((i * 5000))
        done
    done
}
collective='\012t\022\011/host:CPU\032&\010\005\022\005tf_x/\030d\042\016\010\001\020\000\030\240\302\036\042\004\010\001\040\007\042\011\010\002\020\300\317\044\030\210\047\042\034\010\001\022\030\010\001\022\024g:CollectiveReduceV\062\042\013\010\002\022\007\010\002\022\003a:B*\024\010\001\022\020\010\001\022\014instance_key'
put xplane/collective "A$collective"
{ printf '%b' "B$collective" && printf '\n==\n' && printf '%b' "$collective" && printf '\n==\n' && chunks 0 && printf '\n==\n' && chunks 1; } >"$out/load/ring"
for first in x gpu flows; do
    { cat "$out/kineto/$first" && printf '\n==\n' && tail -c +2 "$out/kineto/x"; } >"$out/load/$first"
    { printf B && tail -c +2 "$out/kineto/$first" && printf '\n==\n' && tail -c +2 "$out/et/flat"; } >"$out/load/$first-et"
done

# whole jobs: events are appended to $events, a file is begun with `job` and ended with `close`
span() { # span CATEGORY NAME PID TID TS DUR ARGS
    events="$events,
{\"ph\":\"X\",\"cat\":\"$1\",\"name\":\"$2\",\"pid\":$3,\"tid\":$4,\"ts\":$5,\"dur\":$6,\"args\":{$7}}"
}
step() { span user_annotation "ProfilerStep#$1" 9 1 "$2" "$3" ''; }
launch() { # launch CORRELATION CALL TS KERNEL STREAM TS DUR ARGS
    span cuda_runtime "$2" 9 1 "$3" 4 "\"correlation\":$1"
    span "${9:-kernel}" "$4" 0 "$5" "$6" "$7" "\"correlation\":$1,\"device\":0,\"stream\":$5$8"
}
job() { events="{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":9,\"tid\":1,\"args\":{\"name\":\"main\"}}"; }
close() { # close RANK WORLD
    printf '{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank":%s,"world_size":%s},"traceEvents":[%s\n]}' "$1" "$2" "$events"
}

nccl_rank() { # nccl_rank RANK LATE: two steps of forward, backward, all-reduce in a group, blocking copy
    job
    for i in 1 2; do
        t=$((i * 1000)) k=$((i * 20))
        step "$i" "$t" 990
        span cpu_op aten::mm 9 1 $((t + 5)) 60 '"Sequence number":3,"Fwd thread id":0,"External id":7'
        launch $((k + 1)) cudaLaunchKernel $((t + 10)) gemm 7 $((t + 20 + $2)) 100 ''
        span cpu_op 'autograd::engine::evaluate_function: MmBackward0' 9 2 $((t + 100)) 80 '"Sequence number":3,"Fwd thread id":1'
        span user_annotation nccl:all_reduce 9 1 $((t + 190)) 30 ''
        span cpu_op record_param_comms 9 1 $((t + 191)) 20 '"Collective name":"allreduce","In msg nelems":10,"Group size":2,"dtype":"Float"'
        launch $((k + 2)) cudaLaunchKernelExC $((t + 195)) 'ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)' 20 $((t + 210 + $2)) $((300 - $2)) ",\"Collective name\":\"allreduce\",\"In msg nelems\":10,\"Process Group Name\":\"0\",\"Process Group Ranks\":\"[0, 1]\",\"Group size\":2,\"dtype\":\"Float\",\"Seq\":$i"
        span cuda_runtime cudaEventRecord 9 1 $((t + 230)) 2 "\"correlation\":$((k + 3))"
        span cuda_runtime cudaStreamWaitEvent 9 1 $((t + 233)) 2 "\"correlation\":$((k + 4))"
        span cuda_sync 'Stream Wait Event' 0 7 $((t + 234)) 0 "\"cuda_sync_kind\":\"Stream Wait Event\",\"stream\":7,\"correlation\":$((k + 4)),\"wait_on_stream\":20,\"wait_on_cuda_event_record_corr_id\":$((k + 3))"
        span user_annotation 'Optimizer.step#SGD.step' 9 1 $((t + 240)) 60 ''
        launch $((k + 5)) cudaLaunchKernel $((t + 250)) adam 7 $((t + 520)) 50 ''
        launch $((k + 6)) cudaMemcpyAsync $((t + 300)) 'Memcpy DtoH (Device -> Pageable)' 7 $((t + 580)) 20 ',"bytes":4' gpu_memcpy
        span cuda_runtime cudaDeviceSynchronize 9 1 $((t + 620)) 5 "\"correlation\":$((k + 7))"
    done
    close "$1" 2
}
{ printf 'A' && nccl_rank 0 0 && printf '\000' && nccl_rank 1 150; } >"$out/replay/nccl"
# with the logs of NCCL's proxies: each of two ranks sends the other two steps an iteration
python3 - "$out/replay/nccl" "$out/log/nccl" "$out/replay/nccl-steps" <<'END'
import struct
import sys
with open(sys.argv[1], "rb") as file:
    profiles = file.read()[1:].split(b"\0")
with open(sys.argv[2], "rb") as file:
    log = file.read()[2:]
HEADER, COMM, STRING = 152, 104, 64


def event(kind, number, parent, start, flags, body):
    body = struct.pack("<QQqqIiBBHI", number, parent, start, start + 5000, 1, 0, kind, flags, 0, 7) + body
    return struct.pack("<BBHI", 33, 1, 8 + len(body), 1) + body


parts = []
for rank, profile in enumerate(profiles):
    data = bytearray(log[:HEADER + COMM + STRING])
    data[24] = rank  # of the process
    data[HEADER + 12] = rank  # in the communicator
    for i in (1, 2):
        at = i * 1000000 + 196000
        data += event(1, i * 100, 0, at, 0, struct.pack("<QQQQQQIIIIiHH", i, 10, 40, 1, 2, 0, 1, 1, 1, 1, 0, 2, 4))
        for flags in (1, 2):
            data += event(3, i * 100 + flags, i * 100, at + 100000, flags,
                          struct.pack("<qqqqQiiiIII", 1, 2, 3, 4, 0, 1 - rank, 0, 2, 2048, 0, 0))
            for step in (0, 1):
                sent = at + 200000 + 50000 * step
                data += event(4, i * 100 + 10 * flags + step, i * 100 + flags, sent, flags,
                              struct.pack("<qqqqQiI", 0, 0, sent if flags == 1 else 0, sent + 30000 if flags == 2 else 0,
                                          4096, step, 0))
    parts += [profile, bytes(data)]
with open(sys.argv[3], "wb") as out:
    out.write(b"\xc1" + b"".join(struct.pack("<H", len(part)) + part for part in parts))
END
{ printf '@' && nccl_rank 0 0 && printf '\000' && nccl_rank 1 90 && printf '\000' && nccl_rank 2 10; } >"$out/replay/nccl-delay"

p2p_rank() { # p2p_rank RANK KIND KEY PEER
    job
    for i in 0 1 2; do
        t=$((i * 400))
        step "$i" "$t" 400
        launch $((i + 1)) hipLaunchKernel $((t + 10)) 'ncclDevKernel_SendRecv(ncclDevComm*)' 9 $((t + 30)) 60 ",\"Collective name\":\"$2\",\"In msg nelems\":5,\"$3\":$4,\"Group size\":2,\"dtype\":\"Half\""
        span cuda_runtime hipStreamSynchronize 9 1 $((t + 20)) 100 "\"correlation\":$((i + 50))"
    done
    close "$1" 2
}
{ printf 'C' && p2p_rank 0 send 'Dst Rank' 1 && printf '\000' && p2p_rank 1 recv 'Src Rank' 0; } >"$out/replay/p2p"

gloo_rank() { # gloo_rank RANK END
    job
    for i in 4 5; do
        t=$((i * 1000))
        step "$i" "$t" 1000
        span user_annotation 'enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__' 9 1 $((t + 5)) 40 ''
        span cpu_op 'autograd::engine::evaluate_function: torch::autograd::AccumulateGrad' 9 1 $((t + 100)) 100 '"Record function id":77'
        span cpu_op torch::distributed::reducer::mul_out 9 1 $((t + 110)) 20 '"Input Dims":[[10,3]]'
        span cpu_op torch::distributed::reducer::mul_out 9 1 $((t + 140)) 20 '"Input Dims":[[7]]'
        span cpu_op c10d::allreduce_ 9 1 $((t + 170)) 20 '"Input Dims":[[[37]],[]],"Input type":["TensorList"]'
        span user_annotation gloo:all_reduce 9 50 $((t + 180)) $2 '"Input Dims":[[37]],"Input type":["float"]'
        span cpu_op torch.distributed.ddp.reducer::copy_bucket_to_grad 9 1 $((t + 600)) 10 '"Input Dims":[[10,3]]'
        span cpu_op torch.distributed.ddp.reducer::copy_bucket_to_grad 9 1 $((t + 620)) 10 '"Input Dims":[[7]]'
    done
    close "$1" 2
}
{ printf 'A' && gloo_rank 0 400 && printf '\000' && gloo_rank 1 410; } >"$out/replay/gloo"
{
    printf 'A' && gloo_rank 0 400 && printf '\000'
    printf '{"schema":"1.0.1","pid":9,"nodes":[{"name":"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad","id":5,"rf_id":77,"parent":1,"seq_id":-1,"tid":1,"inputs":[[[9,202,0,1,8,"cpu"]]],"outputs":[[[9,202,0,1,8,"cpu"]]]}]}'
} >"$out/replay/gloo-et"

# both ranks' logs of a ring of two with notices, in two chunks
net_end() { # net_end RANK FROM START END OFFSET BYTES OPCODE TAG
    if [ "$1" = "$2" ]; then at=$3 call=tx,writev; else at=$4 call=rx,recv; fi
    printf '%d000,%d500,%d,50,1,10.0.0.%d:%d,10.0.0.%d:%d,%s,%d,%d,%d,%d,%d,4,%d,0,%d\n' "$at" "$at" "$1" $(($1 + 1)) $((7 + $1)) \
        $((2 - $1)) $((8 - $1)) "$call" "$5" "$6" "$6" "$6" "$7" "$8" $(($6 - 48))
}
net_rank() {
    echo "$header"
    for i in 4 5; do
        for k in 0 1; do
            for from in 0 1; do
                t=$((i * 1000 + 190 + 90 * k + 3 * from)) offset=$(((i - 4) * 344 + k * 172))
                net_end "$1" "$from" "$t" $((t + 1)) "$offset" 48 3 "$i"
                net_end "$1" "$from" $((t + 10)) $((t + 70)) $((offset + 48)) 124 1 "$i"
            done
        done
    done
}
{ printf 'A' && gloo_rank 0 400 && printf '\000' && gloo_rank 1 410 && printf '\000' && net_rank 0 && printf '\000' && net_rank 1; } >"$out/replay/messages"

# no marks: the optimizer's calls, then the period of the ops
job
for i in 0 1 2 3; do
    t=$((i * 500))
    span user_annotation 'Optimizer.zero_grad#SGD.zero_grad' 9 1 "$t" 20 ''
    for op in a b c; do
        span cpu_op "aten::$op" 9 1 $((t = t + 30)) 25 ''
    done
    launch $((i + 1)) cudaGraphLaunch $((t + 40)) k1 7 $((t + 50)) 20 ''
    span kernel k2 0 8 $((t + 60)) 30 "\"correlation\":$((i + 1))"
done
{ printf 'I' && close 0 1; } >"$out/replay/optimizer"
{ printf 'K' && close 0 1 | sed 's/Optimizer.zero_grad#SGD.zero_grad/aten::z/'; } >"$out/replay/period"
# a whole job of one recording, whose times are as far apart as they can be
{ printf 'A' && close 0 1 | sed -e 's/"ts":30,/"ts":-9223372036854775,/' -e 's/"ts":1550,/"ts":9223372036854000,/' -e 's/Optimizer/Other/'; } >"$out/replay/far"
# a copy that takes no time, of a rank that no job has
printf 'A{"distributedInfo":{"rank":2147483647},"traceEvents":[{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":7,"ts":1,"dur":0,"args":{"stream":7}}]}' >"$out/replay/instant"

# a plan, and two blocks of turns
printf '{"schema":"dpro.plan/1","dpro":"0.1.0","job":{"framework":"pytorch","world_size":2,"models":[{"name":"n","parameters":[{"name":"a","size_bytes":4},{"name":"b","size_bytes":8}]}]},"expected":{"baseline_ms":9.5,"iteration_ms":8,"uncertainty_pct":2},"communication":{"compression":"fp16","buckets":[{"model":0,"parameters":["b","a"],"size_bytes":12,"partitions":2,"priority":1}]}}' >"$out/verify/plan"
{
    printf '{"schema":"dpro.verify-steps/1","complete":true,"problem":null,"world_size":2,"models":["n"],"steps":2,"settle":2,"blocks":2,"turns":['
    for block in 0 1; do
        for name in own plan cap=5 cap=5 plan own; do
            printf '{"block":%d,"name":"%s","span_ns":200,"step_ns":[100,10%d],"bucket_bytes":[12]},' "$block" "$name" "${#name}"
        done
    done
    printf '],"warnings":["w"]}'
} >"$out/verify/steps"
# a session: the client's profile with its steps marked, another worker's that received what the client made, the graphs
client='\012\220\003\022\011/host:CPU\032\234\001\010\005\022\006tf_x/0\030\200\200\250\261\343\237\347\313\027\042\017\010\001\020\300\204=\030\350\007\042\004\010\001\040\007\042\014\010\005\020\200\332\304\011\030\300\215\267\001\042\017\010\006\020\000\030\200\225\365*\042\004\010\004\040\000\042\020\010\002\020\200\264\211\023\030\350\007\042\004\010\001\040\007\042\020\010\001\020\300\306\224\060\030\350\007\042\004\010\001\040\011\042\014\010\005\020\200\234\234\071\030\300\215\267\001\042\022\010\006\020\200\302\327/\030\200\225\365*\042\004\010\004\040\001\042\020\010\002\020\200\366\340B\030\350\007\042\004\010\001\040\011\042\020\010\001\022\014\010\001\022\010RunGraph\042\024\010\002\022\020\010\002\022\014RunGraphDone\042*\010\003\022&\010\003\022\042ExecutorState::ProcessAsync::Start\042)\010\004\022\045\010\004\022!ExecutorState::ProcessAsync::Done\042\016\010\005\022\012\010\005\022\006v:Read\042\015\010\006\022\011\010\006\022\005train*\012\010\001\022\006\010\001\022\002id*\017\010\002\022\013\010\002\022\007step_id*\014\010\003\022\010\010\003\022\004name*\020\010\004\022\014\010\004\022\010step_num*\011\010\006\022\005\010\006\022\001r'
worker='\012\311\003\022\011/host:CPU\032\326\001\010\005\022\006tf_x/0\030\200\200\250\261\343\237\347\313\027\042\017\010\001\020\300\204=\030\350\007\042\004\010\001\040\007\042\014\010\005\020\200\332\304\011\030\300\215\267\001\042\025\010\003\020\200\211z\030\350\007\042\004\010\003\070\006\042\004\010\002\040\007\042\026\010\004\020\300\250\245\004\030\350\007\042\004\010\003\070\006\042\004\010\002\040\007\042\020\010\002\020\200\264\211\023\030\350\007\042\004\010\001\040\007\042\020\010\001\020\300\306\224\060\030\350\007\042\004\010\001\040\011\042\014\010\005\020\200\234\234\071\030\300\215\267\001\042\026\010\003\020\200\313\321\060\030\350\007\042\004\010\003\070\006\042\004\010\002\040\011\042\026\010\004\020\300\352\374\063\030\350\007\042\004\010\003\070\006\042\004\010\002\040\011\042\020\010\002\020\200\366\340B\030\350\007\042\004\010\001\040\011\042\020\010\001\022\014\010\001\022\010RunGraph\042\024\010\002\022\020\010\002\022\014RunGraphDone\042*\010\003\022&\010\003\022\042ExecutorState::ProcessAsync::Start\042)\010\004\022\045\010\004\022!ExecutorState::ProcessAsync::Done\042\015\010\005\022\011\010\005\022\005m:Mul\042\015\010\006\022\011\010\006\022\005train*\012\010\001\022\006\010\001\022\002id*\017\010\002\022\013\010\002\022\007step_id*\014\010\003\022\010\010\003\022\004name*\020\010\004\022\014\010\004\022\010step_num*\011\010\006\022\005\010\006\022\001r'
graphs='\012\211\002\012=\012+/job:worker/replica:0/task:100/device:CPU:0\022\016\012\001v\020\200\200\371\300\301\304\202\003(\003\012\307\001\012+/job:worker/replica:0/task:101/device:CPU:0\022\207\001\012\012RecvTensor\020\200\200\371\300\301\304\202\003(\005Bn[4B]\040[1Mb/s]\040e\040from\040/job:worker/replica:0/task:100/device:CPU:0\040to\040/job:worker/replica:0/task:101/device:CPU:0\022\016\012\001m\020\211\200\371\300\301\304\202\003(\002\032\205\002\012\066\012\001v\022\004Read\042+/job:worker/replica:0/task:100/device:CPU:0\012\312\001\012\001s\022\005_Send\032\001v\042+/job:worker/replica:0/task:100/device:CPU:0*\022\012\013tensor_name\022\003\022\001e*<\012\013send_device\022-\022+/job:worker/replica:0/task:100/device:CPU:0*<\012\013recv_device\022-\022+/job:worker/replica:0/task:101/device:CPU:0\032\204\002\012\307\001\012\001r\022\005_Recv\042+/job:worker/replica:0/task:101/device:CPU:0*\022\012\013tensor_name\022\003\022\001e*<\012\013send_device\022-\022+/job:worker/replica:0/task:100/device:CPU:0*<\012\013recv_device\022-\022+/job:worker/replica:0/task:101/device:CPU:0\012\070\012\001m\022\003Mul\032\001r\042+/job:worker/replica:0/task:101/device:CPU:0'
put xplane/session "A$worker"
{ printf '%b' "B$client" && printf '\n==\n' && printf '%b' "$worker" && printf '\n==\n' && printf '%b' "$graphs"; } >"$out/load/session"

# a single process of two modules: profile with allocations and marks, execution trace, what was there before, the recorder's facts; the
# same with FSDP's units; with convolutions and without allocations
python3 - "$out/memory/" <<'END'
import json
import sys


def span(name, start, dur, cat="cpu_op", **args):
    events.append({"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": dur, "args": args})


def op(name, start, dur, inputs, outputs, **args):
    global number
    number += 1
    span(name, start, dur, **{"External id": number, "Record function id": number, **args})
    nodes.append({"id": number + 1, "name": name, "ctrl_deps": 1, "rf_id": number,
                  "inputs": {"values": [[t, t, 0, t, 4, "cpu"] for t in inputs], "shapes": [[t] for t in inputs],
                             "types": ["Tensor(float)"] * len(inputs), "strides": [[1]] * len(inputs)},
                  "outputs": {"values": [[t, t, 0, t, 4, "cpu"] for t in outputs], "shapes": [[t] for t in outputs],
                              "types": ["Tensor(float)"] * len(outputs), "strides": [[1]] * len(outputs)},
                  "attrs": [{"name": "rf_id", "type": "uint64", "value": number}]})


def block(at, address, size):
    events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 9, "tid": 9, "ts": at,
                   "args": {"Total Allocated": 4096, "Bytes": size, "Device Id": -1, "Device Type": 0, "Addr": address}})


def gather(unit, at):
    for what in ("all_gather", "all_gather_copy_out"):
        span("FSDP::%s (blocks.%d)" % (what, unit), at, 4, "user_annotation")
        op("aten::empty", at + 1, 2, [], [800 + unit])
        block(at + 2, 1048576 * (unit + 1) + at, 64)
        at += 4


model = {"name": "FSDPNet", "parallel": "fsdp", "parameters": [{"name": "blocks.0.weight", "size_bytes": 2000},
                                                               {"name": "blocks.1.weight", "size_bytes": 2000}],
         "fsdp": {"units": [{"name": "blocks.0", "parameters": [0]}, {"name": "blocks.1", "parameters": [1]}]}}
for kind in ("whole", "sharded", "convolutions"):
    events, nodes, number = [], [], 0
    for step in range(3):
        t = 1000 * step
        span("ProfilerStep#%d" % step, t, 990, "user_annotation")
        span("dpro.module:", t + 10, 300, "user_annotation")
        for i in range(2):
            span("dpro.module:blocks.%d" % i, t + 20 + 100 * i, 90, "user_annotation")
            op("aten::linear", t + 30 + 100 * i, 60, [8 * i + 8, 500], [8 * i + 16],
               **{"Sequence number": 7 + 2 * step + i, "Fwd thread id": 0})
            block(t + 35 + 100 * i, 4096 * (i + 1), 512)
            block(t + 40 + 100 * i, 65536, 256)
            block(t + 50 + 100 * i, 65536, -256)
            if kind == "sharded":
                gather(i, t + 21 + 100 * i)
                span("FSDP::post_forward (blocks.%d)" % i, t + 115 + 100 * i, 2, "user_annotation")
            if kind == "convolutions":
                op("aten::mkldnn_convolution", t + 95 + 100 * i, 14, [8 * i + 8, 500], [600 + i])
                op("aten::empty", t + 105 + 100 * i, 1, [], [600 + i])
        for i in (1, 0):
            start = t + 400 + 150 * (1 - i)
            op("autograd::engine::evaluate_function: AddmmBackward0", start, 100, [8 * i + 16], [900 + i],
               **{"Sequence number": 7 + 2 * step + i, "Fwd thread id": 1})
            if kind == "sharded":
                span("FSDP::pre_backward (blocks.%d)" % i, start - 20, 15, "user_annotation")
                if i == 0:
                    gather(i, start - 18)
            if kind == "convolutions":
                op("aten::convolution_backward", start + 10, 80, [600 + i, 8 * i + 8, 500], [700 + i, 900 + i])
                op("aten::empty", start + 40, 1, [], [700 + i])
                op("aten::as_strided_", start + 42, 1, [700 + i], [700 + i])
                op("aten::empty", start + 80, 1, [], [900 + i])
            block(start + 10, 131072 * (i + 1), 128)
            block(start + 50, 4096 * (i + 1), -512)
        span("Optimizer.step#SGD.step", t + 800, 100, "user_annotation")
        op("aten::add_", t + 810, 50, [500, 900], [500])
        block(t + 870, 131072, -128)
        block(t + 880, 262144, -128)
    if kind == "convolutions":
        events = [event for event in events if event["ph"] != "i"]
    parts = [{"schemaVersion": 1, "profile_memory": 1, "traceEvents": events, "baseTimeNanoseconds": 1000000000},
             {"schema": "1.1.1-chakra.0.0.4", "pid": 9, "time": "x", "start_ts": 1, "finish_ts": 2, "nodes": [
                 {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1,
                  "inputs": {"values": [], "shapes": [], "types": []}, "outputs": {"values": [], "shapes": [], "types": []}, "attrs": []},
                 *nodes]},
             {"schema": "dpro.memory/1", "device": "cpu", "when_ns": 1003000000, "capacity_bytes": 1000000,
              "modules": [["", "Net"], ["blocks.0", "Block"], ["blocks.1", "Block"]],
              "blocks": [["parameter", "blocks.0.weight", 524288, 2000], ["state", "blocks.0.weight", 528384, 2000]],
              "freed": [["gradient", "blocks.0.weight", 131072, 128]]},
             {"schema": "dpro.rank/1", "dpro": "0.1.0", "rank": 0, "world_size": 1, "pid": 9, "framework": "pytorch", "batch_size": 4,
              "models": [model] if kind == "sharded" else [], "complete": True}]
    with open(sys.argv[1] + kind, "w", encoding="utf-8") as out:
        out.write("\n==\n".join(json.dumps(part) for part in parts))
END
