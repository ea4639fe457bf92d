"""The pages of a replay and of a search at the widths of a phone, a tablet and a desk: nothing leaves the page, and no text is
printed over another one. Needs Chromium."""
import html
import json
import os
import re
import unittest

import gpu_job
from browser import CHROMIUM, browser
from gpu_job import Job
from stage_job import StageJob
from support import BUNDLED, Case, dpro, read_json, read_text
from test_stages import uneven

WIDTHS = (360, 390, 768, 1280) if os.environ.get("DPRO_LONG") else (360, 768, 1280)

# In the page: text that its card or the window cuts off, text over other text, and labels without a gap. A box that scrolls may be
# wider inside, and a table's then says so.
PROBE = """<script>
setTimeout(() => {
  const bad = [], width = document.documentElement.clientWidth, texts = [];
  const say = (what, e, r) => bad.push(what + ": " + e.textContent.slice(0, 60) + " at " + Math.round(r.left) + ".." + Math.round(r.right));
  const clip = (rect, e) => {
    let { left, right, top, bottom } = rect;
    for (let p = e; p && p !== document.body; p = p.parentElement) {
      if (getComputedStyle(p).overflowX === "visible") continue;
      const box = p.getBoundingClientRect();
      left = Math.max(left, box.left); right = Math.min(right, box.right);
      top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
    }
    return { left, right, top, bottom };
  };
  const block = (e) => {
    while (!e.ownerSVGElement && getComputedStyle(e).display.startsWith("inline")) e = e.parentElement;
    return e;
  };
  for (const box of document.querySelectorAll(".scroll"))
    if (box.scrollWidth > box.clientWidth + 1 && !getComputedStyle(box, "::after").content.includes("scroll"))
      bad.push("a table is cut off without a sign: " + box.textContent.slice(0, 40));
  if (document.documentElement.scrollWidth > width)
    bad.push("the page is " + document.documentElement.scrollWidth + " wide in a window of " + width);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || e.closest("script, noscript, details ul, #tip")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = range.getClientRects(), n = node.data.trim().length;
    if (n > 8 && lines.length * 4 > n) say("has few letters a line", e, lines[0]);
    for (const line of lines) {
      const r = clip(line, e);
      if (r.right - r.left < 1 || r.bottom - r.top < 1) continue;
      if (r.left < -1 || r.right > width + 1) say("leaves the window", e, r);
      const card = e.closest(".card, .tile");
      if (card) {
        const box = card.getBoundingClientRect();
        if (r.left < box.left - 1 || r.right > box.right + 1) say("leaves its card", e, r);
      }
      for (const other of texts)
        if (other.e !== e && Math.min(r.right, other.right) - Math.max(r.left, other.left) > 2 &&
            Math.min(r.bottom, other.bottom) - Math.max(r.top, other.top) > 4)
          say("is printed over '" + other.e.textContent.slice(0, 40) + "'", e, r);
      const end = e.closest(".mid, .bar") ? null : block(e); /* of a name cut in its middle, both halves touch */
      for (const other of texts)
        if (end && other.end && other.end !== end && Math.min(r.bottom, other.bottom) - Math.max(r.top, other.top) > 4 &&
            Math.abs(Math.min(r.right, other.right) - Math.max(r.left, other.left)) < 2)
          say("touches '" + other.e.textContent.slice(0, 40) + "'", e, r);
      if (!e.closest(".bar")) texts.push({ e, end, ...r });
    }
  }
  parent.postMessage(JSON.stringify({ width, n: texts.length, bad: bad.slice(0, 20) }), "*");
}, 200);
</script>"""
FRAMES = """<!DOCTYPE html><body><script>
addEventListener("message", (e) => { const p = document.createElement("pre"); p.textContent = e.data; document.body.append(p); });
</script>%s</body>"""


@unittest.skipUnless(CHROMIUM, "no Chromium here")
class Pages(Case):
    def probe(self, page):
        """What is wrong with a page at each width."""
        text = read_text(page)
        probed = self.write("probed.html", text.replace("</body>", PROBE + "</body>"))
        frames = "".join(f'<iframe src="file://{probed}" style="border:0" width="{width}" height="900"></iframe>' for width in WIDTHS)
        shown = self.dom(self.write("frames.html", FRAMES % frames), width=1600, height=4000)
        found = {}
        for told in re.findall(r"<pre>(.*?)</pre>", shown, re.S):
            facts = json.loads(html.unescape(told))
            self.assertGreater(facts["n"], 20)
            found[facts["width"]] = facts["bad"]
        self.assertEqual(sorted(found), sorted(WIDTHS), "not every frame answered")
        return found

    def assert_readable(self, page):
        self.assertEqual(self.probe(page), {width: [] for width in WIDTHS})

    def replay(self, *paths):
        self.assert_code(dpro("replay", "-q", *paths, "-o", self.path("out")), 0)
        return self.path("out", "report.html")

    def test_a_real_replay_is_readable_at_every_width(self):
        page = self.replay(BUNDLED)
        self.assert_readable(page)
        self.assertIn("Who holds the peak of rank", self.dom(page))

    def test_long_names_and_many_ranks_are_readable_at_every_width(self):
        name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
        self.assert_readable(self.replay(self.write_job("job", world=40, slow=(7, 8_000), name=name)))

    def test_long_iterations_stay_in_their_tiles(self):
        self.assert_readable(self.replay(self.write_job("job", forward_us=9_000_000, backward_us=20_000_000)))

    def test_parallel_jobs_are_readable_at_every_width(self):
        for name in ("torch-fsdp-tp-gloo-n4", "torch-pp-gloo-n2"):
            with self.subTest(name):
                self.assert_readable(self.replay(os.path.join(os.path.dirname(BUNDLED), name)))

    def test_the_reader_chooses_an_iteration(self):
        """Its table is that of the iteration; the timeline's is said, and how another one is drawn."""
        def within(rank, number):
            rank.now += 20_000 * (rank.rank == 1 and number == 3)

        job = Job(kernels=30, kernel_us=1000.0, world=2, buckets=2, sync="end", within=within)
        folder, _ = gpu_job.write(self, job, steps=6, folder="job")
        page = self.replay(folder)
        self.assert_readable(page)
        text = read_text(page)
        data = json.loads(re.search(r'id="data">\n(.*?)\n</script>', text, re.S)[1])
        report, rows = data["report"], data["iterations"]
        keys = ("forward_ms", "backward_ms", "update_ms", "input_ms", "exposed_communication_ms", "wait_for_peers_ms", "idle_ms")
        for r, rank in enumerate(report["ranks"]):
            for k, key in enumerate(keys):
                mean = sum(row[r * len(keys) + k] for row in rows) / len(rows) / 1000
                self.assertAlmostEqual(mean, rank[key], delta=0.002)
        for row, ms in zip(rows, report["measured"]["per_iteration_ms"]):
            self.assertAlmostEqual(sum(row[:len(keys)]) / 1000, ms, delta=0.3)
        shown = self.dom(page).rpartition("</script>")[2]
        drawn = report["critical_path"]["iteration"]
        self.assertRegex(shown, f"iteration {drawn}: [0-9.]+ ms, drawn</option>")
        self.assertRegex(shown, "iteration 3: [0-9.]+ ms, slow</option>")
        self.assertIn("Where each rank's predicted iteration goes", shown)
        choose = """<script>setTimeout(() => { const c = document.querySelector("select[aria-label=iteration]");
            c.selectedIndex = 3; c.dispatchEvent(new Event("change")); }, 100);</script></body>"""
        chosen = self.write("chosen.html", text.replace("</body>", choose))
        self.assert_readable(chosen)
        shown = self.dom(chosen)
        self.assertIn("Where each rank's iteration 3 goes, as replayed", shown)
        self.assertRegex(shown, "ranks waited [0-9.]+ ms for rank 1")
        self.assertRegex(shown, "Replayed with the durations that ops had in it: [0-9.]+ ms; it was measured as [0-9.]+ ms")
        self.assertRegex(shown, "iteration 3: [0-9.]+ ms, slow, as measured")
        self.assertIn("<code>dpro replay --iteration 3 -o FOLDER TRACE</code>", shown)

    def after(self, page, script):
        """The page's elements after a script, and the data that it draws."""
        text = read_text(page)
        data = json.loads(re.search(r'id="data">\n(.*?)\n</script>', text, re.S)[1])
        changed = self.write("changed.html", text.replace("</body>", "<script>setTimeout(() => {" + script + "}, 100);</script></body>"))
        self.assert_readable(changed)
        return self.dom(changed).rpartition("</script>")[0], data

    def rows_of(self, card):
        rows = re.findall("<tr>(.*?)</tr>", card)[1:]
        return [[re.sub("<[^>]*>", "", cell) for cell in re.findall("<td.*?</td>", row, re.S)] for row in rows]

    def test_all_ops_are_listed_by_module_sorted_and_filtered(self):
        page = self.replay(BUNDLED + "-memory")
        shown, data = self.after(page, """const c = document.querySelector("select[aria-label='group ops']"), card = c.closest(".card");
            c.selectedIndex = 1; c.dispatchEvent(new Event("change"));
            [...card.querySelectorAll("th button")].find((b) => b.textContent === "count").click();""")
        ops, strings = data["ops"], data["strings"]
        of = [strings[m - 1] or "the model itself" if m else "no module" for m in ops["module"]]
        rows = self.rows_of(re.search("All ops</h2>.*?</section>", shown, re.S)[0])
        counts = [int(row[3]) for row in rows]
        self.assertEqual(counts, sorted(counts, reverse=True))
        self.assertEqual(dict(zip([row[0] for row in rows], counts)).get("blocks.0.attention"), of.count("blocks.0.attention"))
        self.assertIn('aria-sort="descending"', shown)
        shown, _ = self.after(page, """const f = document.querySelector("input[aria-label='filter by op or module']");
            f.value = "attention.qkv"; f.dispatchEvent(new Event("input"));""")
        rows = self.rows_of(re.search("All ops</h2>.*?</section>", shown, re.S)[0])
        self.assertGreater(len(rows), 2)
        self.assertEqual([row for row in rows if "attention.qkv" not in row[0]], [])

    def test_arrows_lead_from_the_late_rank_to_those_that_wait_for_it(self):
        page = self.replay(self.write_job("job", world=4, slow=(2, 8_000)))
        _, data = self.after(page, """const buttons = [...document.querySelectorAll("button")];
            buttons.find((b) => b.textContent === "who waits for whom").click();""")
        ops, devices = data["ops"], data["devices"]
        waited = []
        for track in data["tracks"]:
            last = data["collectives"]["replayed" if track["replayed"] else "measured"]
            for slice_at, collective in zip(track["waiting"][::2], track["waiting"][1::2]):
                if track["dur"][slice_at] > 1_000_000:
                    waited.append((devices[track["device"]][0], devices[ops["device"][last[collective]]][0]))
        self.assertEqual({waiting for waiting, _ in waited}, {0, 1, 3})
        self.assertEqual({late for _, late in waited}, {2})

    def test_a_range_of_the_timeline_is_measured(self):
        shown, data = self.after(self.replay(BUNDLED + "-memory"),
                                 """document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "m", bubbles: true }));""")
        card = re.search("<h3>Measured: [0-9.]+ ms, from .*?clear</button>", shown, re.S)[0]
        took = {row[0]: row[2] for row in self.rows_of(card)}
        kinds, ops = data["kinds"], data["ops"]
        forward = 0
        for track in data["tracks"]:
            at, waiting = 0, set(track["waiting"][::2])
            for i, (op, dur) in enumerate(zip(track["op"], track["dur"])):
                at += op
                if track["replayed"] and i not in waiting and kinds[ops["kind"][at]] == "FW":
                    forward += dur / 1e6
        self.assertAlmostEqual(float(took["FW"].split()[0]), forward, delta=0.01 * forward)

    def test_it_is_said_what_the_replay_rests_on(self):
        one = os.path.join(BUNDLED, "kineto_rank1.json.gz")
        for path, ranks in ((BUNDLED, "Every rank of the job is in the trace (2)."), (one, "1 of 2 ranks are in the trace; the others")):
            shown = self.dom(self.replay(path)).rpartition("</script>")[2]
            assumed = shown[shown.index("What this assumes"):]
            self.assertIn(ranks, assumed)
            self.assertRegex(assumed, "Each of the [0-9]+ measured iterations is replayed")
            self.assertRegex(assumed, "cost the thread that ran it [0-9.]+ µs|profiler's own cost is part")

    def test_iterations_have_the_same_numbers_wherever_they_are(self):
        folder, _ = gpu_job.write(self, Job(kernels=30, kernel_us=1000.0, sync="end"), before=20, steps=6, folder="later")
        page = self.replay(folder)
        numbers = self.assert_json("replay", folder)["measured"]["iterations"]
        self.assertGreater(numbers[0], 20)
        shown = self.dom(page).rpartition("</script>")[2]
        for number in (numbers[0], numbers[-1]):
            self.assertRegex(shown, f"<option[^>]*>iteration {number}: ")
            self.assertRegex(shown, f'<text [^>]*text-anchor="middle"[^>]*>{number}</text>')

    def test_bars_of_iterations_bear_their_numbers_and_times(self):
        for folder, steps in (("few", 6), ("many", 60)):
            job = Job(kernels=3, kernel_us=1000.0, sync="end", within=lambda rank, number: setattr(
                rank, "now", rank.now + 20_000 * (number == 4)))
            page = self.replay(gpu_job.write(self, job, steps=steps, folder=folder)[0])
            self.assert_readable(page)
            shown = self.dom(page).rpartition("</script>")[2]
            borne = [int(n) for n in re.findall(r'class="bears"><strong>([0-9]+)</strong><span>[0-9.]+ ms</span>', shown)]
            self.assertEqual(borne, list(range(borne[0], borne[-1] + 1)) if steps == 6 else sorted(set(borne)))
            self.assertIn(4, borne)
            self.assertGreaterEqual(len(borne), 5)

    def test_a_replay_opens_on_the_diagnosis_but_not_a_what_if(self):
        shown = self.dom(self.replay(BUNDLED)).rpartition("</script>")[2]
        self.assertLess(shown.index("<h2>Diagnosis</h2>"), shown.index("Critical path"))
        self.assertNotIn("<h2>Diagnosis</h2>", self.dom(self.replay(BUNDLED, "--delay", "BW=2")).rpartition("</script>")[2])

    def test_a_diagnosis_opens_its_evidence_in_the_timeline(self):
        page = self.path("out", "report.html")
        data = []
        for command in ("diagnose", "replay"):
            self.assert_code(dpro(command, "-q", BUNDLED, "-o", self.path("out")), 0)
            self.assert_readable(page)
            text = read_text(page)
            data.append(json.loads(re.search(r'id="data">\n(.*?)\n</script>', text, re.S)[1])["diagnosis"])
        self.assertEqual(*data)
        causes = read_json(self.path("out", "diagnose.json"))["causes"]
        self.assertEqual(json.loads(re.search(r'id="data">\n(.*?)\n</script>', text, re.S)[1])["diagnosis"]["causes"], causes)
        told = [cause for cause in causes if cause["order"]]
        text = text.replace("<style>", """<script>addEventListener("error", (e) => { if (!e.message.startsWith("ResizeObserver"))
            document.documentElement.append(document.createTextNode("ERR" + "OR " + e.message)); });</script><style>""", 1)
        opened = self.write("opened.html", text.replace("</body>", """<script>setTimeout(() => {
            for (const cause of document.querySelectorAll("details.cause")) cause.querySelector("summary").click();
            setTimeout(() => document.querySelector("details.cause td.op button").click(), 50);
            setTimeout(() => document.body.append("focus " + document.activeElement.tagName), 150); }, 50);</script></body>"""))
        self.assert_readable(opened)
        shown = self.dom(opened)
        self.assertNotIn("ERROR", shown)
        self.assertEqual(shown.count('<details class="cause" open=""'), len(told) + 1)
        self.assertIn(html.escape(told[0]["title"]), shown)
        self.assertIn("focus CANVAS", shown)
        self.assertRegex(shown, '<div class="selected"><div class="name">' + re.escape(html.escape(told[0]["evidence"][0]["op"])))
        self.assertIn("SELECT s.ts, s.dur, s.name", shown)

    def test_shares_in_the_bars_are_those_of_the_text_and_what_is_below_0_has_none(self):
        for trace in ("byteps-torch-n2", "torch-ddp-gloo-conv-n2-memory"):
            self.assert_code(dpro("diagnose", "-q", os.path.join(os.path.dirname(BUNDLED), trace), "-o", self.path("out")), 0)
            facts = read_json(self.path("out", "diagnose.json"))
            card = self.dom(self.path("out", "report.html")).split('<p class="said">', 1)[1].split("iteration</span>", 1)[0]
            shares = [100 * ms / facts["explained_ms"] for ms in [facts["ideal_ms"]] + [cause["blame_ms"] for cause in facts["causes"]]]
            labels = {int(label) for label in re.findall(r">([0-9]+) %</span>", card)}
            self.assertIn(round(shares[0]), labels)
            self.assertLessEqual(labels, {round(share) for share in shares if share > 0})

    def test_why_a_trace_is_slower_than_another_stands_below_its_diagnosis(self):
        other = self.path(8 * "of_a_name_without_an_end_")
        os.symlink(BUNDLED + "-default", other)
        self.assert_code(dpro("diagnose", "-q", BUNDLED, "--against", other, "-o", self.path("out")), 0)
        against = read_json(self.path("out", "diagnose.json"))["against"]
        page = self.path("out", "report.html")
        self.assert_readable(page)
        shown = self.dom(page).rpartition("</script>")[2]
        self.assertRegex(shown, "An iteration takes [0-9.]+ ms (more|less) than in ")
        self.assertRegex(shown, f"<td[^>]*>{re.escape(against['causes'][0]['title'])}</td><td[^>]*>-?[0-9.]+</td><td[^>]*>[0-9.]+</td>")

    def pressed(self, page, keys, look):
        """What `look`, a script, says of a page after each of the keys, which are real ones."""
        said = []
        with browser().page(page):
            for key in keys:
                browser().press(*key)
                browser().wait(100)
                said.append(browser().evaluate(look))
        return said

    def test_causes_and_their_evidence_are_opened_by_keys(self):
        tab, enter = ("Tab", 9), ("Enter", 13)
        said = self.pressed(self.replay(BUNDLED), [tab, enter] + 12 * [tab] + [enter], """[document.activeElement.tagName,
            document.querySelectorAll("details.cause[open]").length, !!document.activeElement.closest("td.op"),
            (document.querySelector(".selected .name") || {}).textContent || ""].join(" ")""")
        self.assertEqual(said[0], "SUMMARY 0 false ")
        self.assertEqual(said[1], "SUMMARY 1 false ")
        at = next(i for i, now in enumerate(said) if " true " in now)
        said = self.pressed(self.path("out", "report.html"), [tab, enter] + (at - 1) * [tab] + [enter], """document.activeElement.tagName +
            " " + (document.querySelector(".selected .name") || {}).textContent""")
        self.assertRegex(said[-1], "^CANVAS .*[a-z]")
        self.assertNotIn("undefined", said[-1])

    def test_the_slowdown_of_each_worker_is_a_map(self):
        trace = self.write("job.csv", StageJob(dp=3, stages=4, times=uneven(3)).csv(apart=0.01))
        self.assert_code(dpro("diagnose", "-q", trace, "-o", self.path("out")), 0)
        page = self.path("out", "report.html")
        self.assert_readable(page)
        shown = self.dom(page)
        self.assertEqual(len(re.findall("<title>stage [0-3], data-parallel rank [0-2]\nslowdown S_w [0-9.]+</title>", shown)), 12)

    def test_a_search_is_readable_at_every_width(self):
        folder = self.path("a plan")
        self.assert_code(dpro("optimize", "-q", "--budget", "1", BUNDLED + "-default", "-o", folder), 0)
        page = os.path.join(folder, "optimize.html")
        self.assert_readable(page)
        shown = self.dom(page).rpartition("</script>")[2]
        unsure = [row for row in read_json(os.path.join(folder, "optimize.json"))["baselines"] if row["uncertainty_pct"]]
        self.assertGreater(len(unsure), 5)
        bars = re.search(r"Iteration time by strategy.*?</section>", shown, re.S)[0]
        self.assertEqual(bars.count("<path"), 1 + len(unsure))  # of what was found, too
        self.assertIn(f"<code>dpro verify --plan '{folder}' -- torchrun ...</code><button type=\"button\">copy", shown)

    def test_a_search_for_memory_is_readable_at_every_width(self):
        self.assert_code(dpro("optimize", "-q", "--budget", "1", "--memory", "150MB", BUNDLED + "-memory", "-o", self.path("plan")), 0)
        self.assert_readable(self.path("plan", "optimize.html"))

    def test_a_search_for_servers_is_readable_at_every_width(self):
        servers = os.path.join(os.path.dirname(BUNDLED), "tf-ps-n2")
        self.assert_code(dpro("optimize", "-q", "--budget", "1", "--servers", "1:3", servers, "-o", self.path("plan")), 0)
        self.assert_readable(self.path("plan", "optimize.html"))

    def test_the_probe_finds_what_it_is_for(self):
        page = self.write("bad.html", "<!DOCTYPE html><body><div class=card style='width:200px'>" + "<p>x</p>" * 30 +
                          "<span style='white-space:nowrap'>" + "wide " * 200 + "</span><div style='position:absolute;top:20px'>over</div>"
                          "<div style='position:absolute;top:22px'>another</div><div style='display:flex'><div>dp 2</div><div>1 group"
                          "</div></div><div class=scroll style='overflow-x:auto'><pre>a b c d e f g h i j k l m n o p q r s t u v w x"
                          "</pre></div><p style='width:12px;overflow-wrap:anywhere'>communication</p></div></body>")
        for bad in self.probe(page).values():
            self.assertTrue(any("leaves its card" in line for line in bad), bad)
            self.assertTrue(any("printed over" in line for line in bad), bad)
            self.assertTrue(any("touches 'dp 2'" in line for line in bad), bad)
            self.assertTrue(any("few letters a line: communication" in line for line in bad), bad)
            self.assertTrue(any("cut off without a sign" in line for line in bad), bad)
