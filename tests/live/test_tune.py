"""dpro tune in real jobs of two ranks over gloo: found, measured and kept in the job that runs, which trains to the same numbers."""
import json
import os
import re
import signal
import subprocess

import live

# A step takes 50 ms a bucket until it is decided, so that one bucket is faster than the job's four.
# The search is waited for before step 60.
BODY = """
dist.init_process_group("gloo")
model = DDP(net(), bucket_cap_mb=0.02)
PLAN, N = sys.argv[1], int(sys.argv[2])
def buckets():
    return len(str(model._get_ddp_logging_data().get("rebuilt_bucket_sizes") or "0").split(","))
def told(text):
    try:
        with open(os.path.join(PLAN, "tune.json")) as file:
            return text in file.read()
    except OSError:
        return False
def decided():
    return told('"complete":true')
def measured():
    return told('"blocks":') and not told('"blocks":0,"steps":')
def each(i):
    while PLAN != "-" and i == 60 and not os.path.exists(os.path.join(PLAN, "search", "plan.json")):
        time.sleep(0.05)
    if PLAN != "-" and not decided():
        time.sleep(0.05 * buckets())
"""
DECIDED = BODY + """
if PLAN != "-":
    from dpro import reducer, tune
    make, found = DDP._ddp_init_helper, tune.Search.found
    make_layout = reducer.make_layout
    def failing(ddp, layout):  # rank 1 alone, when its reducer is gone
        if layout.plan.path.endswith("failing.json") and RANK == 1:
            def no_room(*args):
                raise RuntimeError("there is no room for it")
            DDP._ddp_init_helper = no_room
        try:
            make_layout(ddp, layout)
        finally:
            DDP._ddp_init_helper = make
    def with_failing(search):
        told = found(search)
        told["finalists"].append({"name": "failing", "path": "/failing.json", "plan": told["own"], "promised_pct": 0.0})
        return told
    reducer.make_layout, tune.Search.found = failing, with_failing
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
train(model, optimizer, N, each=each)
calls = []
sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name)
               if event == "call" and os.path.basename(os.path.dirname(frame.f_code.co_filename)) == "dpro" else None)
train(model, optimizer, 3)
sys.setprofile(None)
sys.stdout.write("CALLS %d %s\\nBUCKETS %d %d\\n" % (RANK, ",".join(calls), RANK, buckets()))
end()
"""
ENDS = BODY + """
def until_measured(i):
    each(i)
    go = torch.ones(1)
    if measured():
        go.zero_()
    dist.broadcast(go, 0)
    if not go.item():
        end()
        sys.exit(0)
train(model, torch.optim.SGD(model.parameters(), lr=0.05), N, each=until_measured)
"""


DIFFERS = BODY + """
if PLAN != "-" and RANK == 1:
    from dpro import reducer
    cut_layout = reducer.cut_layout
    def wrong(ddp, layout):
        with torch.no_grad():
            next(ddp.parameters()).view(-1)[0] += 1e-6
        return cut_layout(ddp, layout)
    reducer.cut_layout = wrong
over = []
def until_over(i):
    each(i)
    go = torch.ones(1)
    over.append(os.path.exists(os.path.join(PLAN, "tune.json")) and '"problem":null' not in open(os.path.join(PLAN, "tune.json")).read())
    if sum(over) == 8:
        go.zero_()
    dist.broadcast(go, 0)
    if not go.item():
        sys.stdout.write("BUCKETS %d %d\\n" % (RANK, buckets()))
        end()
        sys.exit(0)
train(model, torch.optim.SGD(model.parameters(), lr=0.05), N, each=until_over)
"""
DOUBLED = BODY + """
if PLAN != "-":
    from dpro import reducer
    def summed(state, bucket):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
    reducer._put_hooks = lambda ddp, layout: layout and dist._register_comm_hook(ddp.reducer, None, summed)
""" + DIFFERS[DIFFERS.index("over = []"):]
OUT_OF_MEMORY = BODY + """
if PLAN != "-":
    from dpro import computing, tune
    found, run, calls = tune.Search.found, computing.Computed._run, []
    def with_bf16(search):
        told = found(search)
        plan = dict(told["own"], computation={"compile": [], "bf16": ["1"], "changes_numerics": True})
        memory = {"recompute": [], "micro_batches": 1, "budget_bytes": None, "baseline_peak_bytes": 1 << 20, "peak_bytes": 1 << 50}
        other = dict(plan, computation={"compile": [], "bf16": ["2"], "changes_numerics": True})
        told["finalists"] += [{"name": name, "path": "/%s.json" % name, "plan": plan, "promised_pct": 0.0, "promised_half_pct": 9.0}
                              for name, plan in (("bf16", plan), ("large", dict(plan, memory=memory)), ("backward", other))]
        return told
    tried = []
    def no_room(gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 bytes")
    def run_out(way, *args):
        if way.name == "2":
            result = run(way, *args)
            tried.append(way)
            if RANK == 1 and len(tried) == 2:  # the first was the trial
                result.register_hook(no_room)
            return result
        calls.append(way)
        if IN_FORWARD and len(calls) == 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
        return run(way, *args)
    tune.Search.found, computing.Computed._run = with_bf16, run_out
def until_bf16(i):
    each(i)
    if PLAN != "-" and not IN_FORWARD and len(calls) == 4:
        raise RuntimeError("CUDA out of memory. Tried to allocate 8 bytes")
train(model, torch.optim.SGD(model.parameters(), lr=0.05), N, each=until_bf16)
end()
"""
DIES = BODY + """
def until_measured(i):
    each(i)
    if RANK == 0 and measured():
        os.kill(os.getpid(), signal.SIGKILL)
train(model, torch.optim.SGD(model.parameters(), lr=0.05), N, each=until_measured)
"""


class Tune(live.Case):
    WARM = True

    def pair(self, body, n, *command, code=0, traced=True):
        settings = self.environment(dpro=False, **self.pair_environment(), DPRO_WARMUP="2", DPRO_ITERATIONS="2")
        run = self.command([*command, *self.PAIR, *self.warm_python(traced), self.script(body), self.path("plan"), str(n)], **settings)
        self.assertEqual(run.codes, [code], run.err[-3000:])
        return run

    def tune(self, body, n, *options, code=0):
        run = self.pair(body, n, live.DPRO, "tune", "-o", self.path("plan"), *options, "--", code=code)
        with open(self.path("plan", "tune.json"), encoding="utf-8") as file:
            return run, json.load(file)

    def test_the_job_goes_on_with_what_is_fastest_and_trains_to_the_same_numbers(self):
        run, told = self.tune(DECIDED, 1000, "--memory", "4GiB")
        self.assertEqual(run.digests, self.ranks(DECIDED, dpro=False, arguments=["-", "1000"]).digests)
        race = told["race"]
        self.assertEqual((told["schema"], told["complete"], told["problem"], told["world_size"]), ("dpro.tune/1", True, None, 2))
        self.assertEqual((race["names"]["failing"]["kind"], race["names"]["failing"]["why"]),
                         ("failed", "rank 1: RuntimeError: there is no room for it"))
        self.assertEqual(run.err.count("tune: failing is out: rank 1: RuntimeError: there is no room for it"), 1)
        self.assertNotEqual(race["winner"], "baseline", race)
        self.assertGreater(race["names"][race["winner"]]["low_pct"], 0)
        self.assertGreater(race["sure"], 0.9)
        own, fastest = (next(turn["bucket_bytes"] for turn in told["turns"] if turn["name"] == name)
                        for name in ("baseline", race["winner"]))
        self.assertLess(len(fastest), len(own))
        for rank in range(2):
            self.assertIn("BUCKETS %d %d" % (rank, len(fastest)), run.out)
            self.assertIn("CALLS %d _nothing,_nothing,_nothing\n" % rank, run.out)  # of dpro, in three steps afterwards
        self.assertEqual(run.err.count("tune: the job goes on with %s, which saves " % race["winner"]), 1)
        self.assertIsInstance(told["cost_pct"], float)
        self.assertEqual(told["compile_s"], 0)
        self.assertEqual({turn["name"] for turn in told["turns"] if turn["peak_bytes"]}, {turn["name"] for turn in told["turns"]})
        self.assertIn("where %.1f %% were expected" % next(
            one["promised_pct"] for one in told["finalists"] if one["name"] == race["winner"]), run.err)
        with open(self.path("plan", "plan.json"), encoding="utf-8") as file:
            self.assertEqual([bucket["size_bytes"] for bucket in json.load(file)["communication"]["buckets"]], fastest)
        self.assertTrue(os.path.exists(self.path("plan", "trace", "job.json")))
        with open(self.path("plan", "trace", "turns.json"), encoding="utf-8") as file:
            turns = json.load(file)
        self.assertEqual((turns["schema"], turns["framework_version"], turns["world_size"]), ("dpro.turns/1", live.TORCH, 2))
        self.assertIn(race["winner"], [turn["name"] for turn in turns["turns"]])
        again = json.loads(subprocess.run([live.DPRO, "optimize", self.path("plan", "trace"), "--json", "-q"], capture_output=True,
                                          text=True, check=True).stdout)
        self.assertEqual(again["turns"]["n"], len(turns["turns"]), again["warnings"])
        self.assertFalse([warning for warning in again["warnings"] if "turns.json" in warning])
        verified = self.pair(DECIDED.replace("if PLAN", "if 0 and PLAN"), 60, live.DPRO, "verify", "--plan", self.path("plan"),
                             "--blocks", "1", "--steps", "1", "--warmup", "2", "--json", "--", traced=False)
        self.assertTrue(json.loads(verified.out)["complete"])

    def test_a_job_that_ends_meanwhile_keeps_the_best_so_far(self):
        run, told = self.tune(ENDS, 2000)
        self.assertEqual((told["complete"], told["race"]["decided"]), (False, False))
        self.assertIn("the job ended after step", told["problem"])
        self.assertRegex(run.err, "tune: the job ended after step [0-9]+(, in a turn of [^,]+)?, before it was decided: "
                                  ".* saves .* the plan in ")
        found = subprocess.run([live.DPRO, "verify", "--plan", self.path("plan"), "--", "true"], capture_output=True, text=True)
        self.assertIn("nothing was measured", found.stderr)  # of a program that does not train; the plan could be read

    def test_parameters_of_ranks_that_differ_after_a_turn_end_the_turns(self):
        run, told = self.tune(DIFFERS, 2000)
        names = told["race"]["names"]
        out = [name for name, one in names.items() if one["kind"] == "failed"]
        self.assertEqual(len(out), 1, names)
        self.assertEqual(names[out[0]]["why"], "rank 1: its parameters are no longer those of rank 0")
        self.assertIn("tune: the job goes on as it was: after steps with %s, rank 1: its parameters are no longer those of rank 0, which "
                      "they were before: checkpoints from before step " % out[0], run.err)
        self.assertEqual((told["complete"], told["race"]["winner"]), (False, "baseline"))
        with open(self.path("plan", "plan.json"), encoding="utf-8") as file:
            own = json.load(file)["communication"]
        self.assertTrue(own["is_own"])
        for rank in range(2):
            self.assertIn("BUCKETS %d %d" % (rank, len(own["buckets"])), run.out)

    def test_gradients_that_are_wrong_alike_on_all_ranks_end_the_turns(self):
        run, told = self.tune(DOUBLED, 2000)
        names = told["race"]["names"]
        out = [name for name, one in names.items() if one["kind"] == "failed"]
        self.assertEqual(len(out), 1, names)
        self.assertRegex(names[out[0]]["why"], "gradients are 2 times the mean of the ranks'$")
        self.assertRegex(run.err, "tune: the job goes on as it was: after a step with %s, .*checkpoints from before step "
                         % re.escape(out[0]))
        self.assertEqual((told["complete"], told["race"]["winner"]), (False, "baseline"))

    def test_what_runs_out_of_memory_within_a_step_is_out_and_the_step_goes_on(self):
        run, told = self.tune("IN_FORWARD = True\n" + OUT_OF_MEMORY, 2000)
        names = told["race"]["names"]
        self.assertEqual([names[name]["kind"] for name in ("bf16", "large", "backward")], ["failed"] * 3)
        self.assertTrue(told["complete"])
        self.assertIn("tune: backward is out: rank 1: its backward pass ran out of memory, and was made again without it: ", run.err)
        self.assertRegex(run.err, "tune: large is out: rank 0: .*it is expected to hold 1048576.00 GiB more than the job, give or take .*, "
                                  "and a rank here has .* left")
        self.assertIn("tune: bf16 is out: rank 0: 1 ran out of memory: RuntimeError: DefaultCPUAllocator: can't allocate memory: ", run.err)

    def test_a_job_that_runs_out_of_memory_in_a_turn_names_the_finalist(self):
        run, told = self.tune("IN_FORWARD = False\n" + OUT_OF_MEMORY, 500, code=1)
        self.assertEqual((told["complete"], told["race"]["names"]["bf16"]["kind"]), (False, "failed"))
        self.assertRegex(run.err, r"tune: the job ended after step [0-9]+, out of memory in a turn of bf16 \(dpro tune --memory ")

    def test_of_a_job_whose_rank_dies_what_was_measured_stays(self):
        run, told = self.tune(DIES, 2000, code=128 + signal.SIGKILL)
        self.assertFalse(told["complete"])
        self.assertRegex(run.err, "tune: the job was killed, or left at once, after step [0-9]+, before it was decided: .* saves .* the "
                                  "plan in ")
        self.assertGreater(told["race"]["blocks"], 0)
        self.assertTrue(os.path.exists(self.path("plan", "trace", "turns.json")))
        self.assertTrue(os.path.exists(self.path("plan", "plan.json")))

    def test_a_job_that_ends_before_the_search_says_how_to_go_on(self):
        body = BODY.replace("while PLAN", "while 0 and PLAN") + (
            "from dpro import tune\ntune.Search.problem = lambda search: search.RUNS\n"
            "train(model, torch.optim.SGD(model.parameters(), lr=0.05), N)\nend()\n")
        run = self.pair(body, 40, live.DPRO, "tune", "-o", self.path("plan"), "--")
        self.assertEqual(run.err.count("tune: the job ended after step 40, before the search was over: dpro optimize "), 1, run.err[-3000:])

    def test_a_job_that_ends_before_all_is_recorded_is_as_it_was(self):
        run = self.pair(BODY + "train(model, torch.optim.SGD(model.parameters(), lr=0.05), N)\nend()\n", 9, live.DPRO, "tune", "-o",
                        self.path("plan"), "--")
        self.assertEqual(run.err.count("tune: the job goes on as it was: the job ended after step 9"), 1, run.err[-3000:])
