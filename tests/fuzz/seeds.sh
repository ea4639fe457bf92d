#!/bin/sh
# seeds.sh FOLDER: writes small inputs to begin fuzzing with, FOLDER/{attach,json,kineto,et,load,replay}/*. The
# first byte of each picks a chunk size, but for attach.
set -eu
out=${1:?usage: seeds.sh FOLDER}
mkdir -p "$out/attach" "$out/json" "$out/kineto" "$out/et" "$out/load" "$out/replay"
put() { printf '%b' "$2" >"$out/$1"; }

zeros() { head -c "$1" /dev/zero; }
{ printf '\024\000\000\000\000\000\000\000req' && zeros 29 && printf '\003\000\000\000\001\000\000\000' && zeros 8 && printf '\147\022\000\000'; } >"$out/attach/request"
{ printf '\020\000\000\000\000\000\000\000ctxt' && zeros 28 && printf '\000\000\000\000\147\022\000\000' && zeros 8; } >"$out/attach/context"

put json/values 'A{"a":[1,-2.5e3,"x\\u00e9\\\\\\"",null,true,NaN],"bb":{"c":"]}"},"skip":[[1,2],"[\\"]"],"ddd":18446744073709551615}'
put json/open 'B[{"ph":"X"},{"ph":'
put json/deep 'C[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]'
put json/et 'D{"schema":"1.0.1","pid":3,"nodes":[]}'

put kineto/x 'A{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank":0,"world_size":2,"pg_config":[{"pg_name":"0","pg_desc":"d","ranks":[0,1]}]},"traceEvents":[\n  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 11,\n    "ts": 4458676522690.655, "dur": 156.777,\n    "args": {\n      "External id": 2049,"Record function id": 1909, "Sequence number": 1080, "Fwd thread id": 1, "Ev Idx": 0\n    }\n  },\n  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 11,\n    "ts": 4458676522790.655, "dur": 6.777,\n    "args": {\n      "External id": 2050,"Record function id": 1910\n    }\n  }],"baseTimeNanoseconds":17}'
put kineto/gpu 'B[{"ph":"X","cat":"kernel","name":"nccl","pid":0,"tid":"stream 7","ts":1,"dur":2,"args":{"correlation":5,"External id":5,"grid":[1,2,3],"Collective name":"allreduce","In msg nelems":10,"Process Group Ranks":"[0, 1]","Group size":2,"dtype":"Float","Seq":3}},{"ph":"X","cat":"cuda_sync","name":"Event Sync","pid":0,"tid":-1,"ts":1,"dur":2,"args":{"cuda_sync_kind":"Event Sync","wait_on_stream":7,"wait_on_cuda_event_record_corr_id":3}},{"ph":"X","cat":"gpu_memcpy","name":"m","pid":0,"tid":7,"ts":1,"dur":2,"args":{"bytes":64}}]'
put kineto/flows 'C[{"ph":"s","id":1,"pid":1,"tid":1,"ts":1,"cat":"fwdbwd","name":"f"},{"ph":"f","id":1,"pid":1,"tid":1,"ts":5,"cat":"fwdbwd","name":"f","bp":"e"},{"ph":"B","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1},{"ph":"E","pid":1,"tid":1,"ts":2},{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"t"}},{"ph":"X","cat":"cpu_op","name":"c10d::allreduce_","pid":1,"tid":1,"ts":1,"dur":-1,"args":{"Input Dims":[[[2,3],[4]],[]],"Input type":["","float"]}}'

put et/flat 'A{"schema":"1.0.1","pid":5,"nodes":[{"name":"aten::cat","id":208,"rf_id":173,"parent":207,"seq_id":440,"tid":1,"inputs":[[[9,202,0,1,8,"cpu"],[11,16,4,416,4,"cuda:0"]],0],"outputs":[[22,209,0,417,8,"cpu"]]}]}'
put et/chakra 'B{"schema":"1.1.1-chakra.0.0.4","pid":7,"nodes":[{"id":436,"name":"record_param_comms","ctrl_deps":435,"inputs":{"values":[[[433,434,0,53120,4,"cuda:0"]],33,["0","default_pg"],"broadcast",[]],"shapes":[[[53120]]],"types":["x"]},"outputs":{"values":[],"shapes":[],"types":[]},"attrs":[{"name":"rf_id","type":"uint64","value":114},{"name":"seq_id","type":"int64","value":-1},{"name":"tid","type":"uint64","value":1}]}]}'

# two files, parted by a NUL
for first in x gpu flows; do
    { cat "$out/kineto/$first" && printf '\000' && tail -c +2 "$out/kineto/x"; } >"$out/load/$first"
    { printf B && tail -c +2 "$out/kineto/$first" && printf '\000' && tail -c +2 "$out/et/flat"; } >"$out/load/$first-et"
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
