#!/bin/sh
# seeds.sh FOLDER: writes small inputs to begin fuzzing with, FOLDER/{json,kineto,et,load}/*. The first byte
# of each picks a chunk size.
set -eu
out=${1:?usage: seeds.sh FOLDER}
mkdir -p "$out/json" "$out/kineto" "$out/et" "$out/load"
put() { printf '%b' "$2" >"$out/$1"; }

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
