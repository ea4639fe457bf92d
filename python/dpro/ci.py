"""What `dpro diagnose --junit F --sarif F --metrics F` runs: writes what it says as other programs read it.

Files are written beside their place and renamed."""
import json
import os
import re
import sys
import urllib.parse
import xml.sax.saxutils as xml

from . import __version__

SYSTEM = 4
_SUMS = {"lost": (), "exposed": ("communication", "bucket_order", "small_messages", "slow_link"), "straggler": ("slow_rank", "uneven_work")}


class Threshold:
    """'exposed>15%', of an answer: `value` in its unit, None where the recording can't tell."""

    def __init__(self, text, answer):
        self.name, most, self.unit = re.match(r"\s*([a-z0-9_]+)\s*>\s*([0-9.eE+-]+)\s*(ms|%)\s*\Z", text).groups()
        self.text, self.most, self.value = text.strip(), float(most), None
        self._look(answer)

    def _look(self, answer):
        causes = _SUMS.get(self.name, (self.name,))
        told = {one["cause"]: one["blame_ms"] for one in answer["causes"] + answer["abstained"]}
        untold = [one["cause"] for one in answer["abstained"] if one["cause"] in causes and one["needs"] is not None]
        ms = sum(told.get(cause, 0) for cause in causes)
        if self.name == "lost":
            ms = answer["explained_ms"] - answer["ideal_ms"]
        elif len(untold) == len(causes):
            return
        self.value = ms if self.unit == "ms" else 100 * ms / answer["explained_ms"] if answer["explained_ms"] > 0 else 0

    @property
    def said(self):
        """What is wrong; None: nothing."""
        if self.value is None or self.value <= self.most:
            return None
        return "%s is %.4g %s, more than %.4g %s" % (self.name, self.value, self.unit, self.most, self.unit)

    def causes(self, answer):
        """Those of the answer that are in it."""
        return [one for one in answer["causes"] if one["order"] and one["cause"] in (_SUMS.get(self.name) or (one["cause"], self.name))]


def _sentence(cause, answer):
    share = 100 * cause["blame_ms"] / answer["iteration_ms"] if answer["iteration_ms"] > 0 else 0
    return "%s: %.1f ms of an iteration (%.1f %%). %s" % (cause["title"], cause["blame_ms"], share, cause["next_step"] or "")


def junit(trace, answer, thresholds):
    """A test case a threshold; one that the recording can't tell is skipped."""
    def known(text):
        return re.sub(r"[^\n\x20-\ud7ff\ue000-\ufffd]", "?", text)

    def attribute(text):
        return xml.quoteattr(known(text))

    cases = []
    for threshold in thresholds:
        what = ""
        if threshold.said:
            more = "\n".join([answer["verdict"], *(_sentence(cause, answer) for cause in threshold.causes(answer))])
            what = "<failure message=%s>%s</failure>" % (attribute(threshold.said), xml.escape(known(more)))
        elif threshold.value is None:
            what = '<skipped message="this recording can\'t tell"/>'
        cases.append("  <testcase classname=%s name=%s>%s</testcase>\n" % (attribute("dpro." + trace), attribute(threshold.text), what))
    failed = sum(threshold.said is not None for threshold in thresholds)
    skipped = sum(threshold.value is None for threshold in thresholds)
    return ('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n<testsuite name="dpro diagnose" tests="%d" failures="%d" errors="0" '
            'skipped="%d">\n%s</testsuite>\n</testsuites>\n' % (len(thresholds), failed, skipped, "".join(cases)))


def sarif(trace, answer, thresholds):
    """SARIF 2.1.0: an error for each threshold that is exceeded, a note for each cause."""
    at = urllib.parse.quote(os.fsencode(trace))
    places = [{"physicalLocation": {"artifactLocation": {"uri": ("file://" if os.path.isabs(trace) else "") + at}}}]
    rules, results = {}, []

    def add(rule, title, level, text):
        rules.setdefault(rule, {"id": rule, "shortDescription": {"text": title}})
        results.append({"ruleId": rule, "ruleIndex": list(rules).index(rule), "level": level, "message": {"text": text},
                        "locations": places})

    for threshold in thresholds:
        if threshold.said:
            steps = [_sentence(cause, answer) for cause in threshold.causes(answer)]
            add("threshold/" + threshold.name, "%s exceeds what --fail-on allows" % threshold.name, "error",
                " ".join([threshold.said + ".", *steps]))
    for cause in answer["causes"]:
        if cause["order"]:
            add(cause["cause"], cause["title"], "note", _sentence(cause, answer))
    driver = {"name": "dpro", "version": __version__, "rules": list(rules.values())}
    return json.dumps({"version": "2.1.0", "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
                       "runs": [{"tool": {"driver": driver}, "results": results}]}, indent=1) + "\n"


def metrics(trace, answer, replay):
    """Gauges as Prometheus' text format has them, in seconds and bytes; what is not known is left out."""
    S = (answer["measures"] or {}).get("S")
    memory = (replay["memory"] or {}).get("ranks", ())
    ms = [("iteration", "an iteration, without dpro", [({}, answer["iteration_ms"])]),
          ("iteration_low", "the 95 % interval of it: its lower end", [({}, answer["iteration_low_ms"])]),
          ("iteration_high", "the same: its upper end", [({}, answer["iteration_high_ms"])]),
          ("ideal", "an iteration with all causes taken away", [({}, answer["ideal_ms"])]),
          ("cause", "what a cause takes of an iteration", [({"cause": one["cause"]}, one["blame_ms"]) for one in answer["causes"]]),
          ("exposed_communication", "communication that nothing of the rank hides",
           [({"rank": one["rank"]}, one["exposed_communication_ms"]) for one in replay["ranks"]]),
          ("wait_for_peers", "a rank waits for the last rank of a collective",
           [({"rank": one["rank"]}, one["wait_for_peers_ms"]) for one in replay["ranks"]])]
    known = [(name + "_seconds", told, [(labels, value / 1e3) for labels, value in values if value is not None])
             for name, told, values in ms]
    known += [("memory_peak_bytes", "the most that a rank holds", [({"rank": one["rank"]}, one["peak_bytes"])
                                                                   for one in memory if one["peak_bytes"] is not None]),
              ("straggler_slowdown_ratio", "S: an iteration over one where each op takes what its type usually does",
               [] if S is None else [({}, S)])]
    lines = []
    for name, told, values in known:
        lines += ["# HELP dpro_%s %s" % (name, told), "# TYPE dpro_%s gauge" % name] if values else []
        for labels, value in values:
            escaped = ['%s="%s"' % (label, str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
                       for label, text in {"trace": trace, **labels}.items()]
            lines.append("dpro_%s{%s} %.9g" % (name, ",".join(escaped), value))
    return "\n".join(lines) + "\n"


def write(path, text):
    """The whole file or none; into what is no file, such as /dev/stdout, as it is."""
    data = text.encode("utf-8", "replace")
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as out:
            out.write(data)
        return
    temporary = "%s.%d.part" % (path, os.getpid())
    try:
        with open(temporary, "xb") as out:
            out.write(data)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def main(args):
    """[a file of both answers' JSON, the trace's name, the thresholds, and the files to write], "" what is not asked for."""
    answers, trace, limits, junit_to, sarif_to, metrics_to = args
    with open(answers, encoding="utf-8", errors="replace") as file:
        text = file.read()
    answer, end = json.JSONDecoder().raw_decode(text)
    replay = json.loads(text[end:])
    thresholds = [Threshold(limit, answer) for limit in limits.split(",") if limit]
    try:
        for path, made in ((junit_to, junit), (sarif_to, sarif), (metrics_to, metrics)):
            if path:
                write(path, made(trace, answer, replay if made is metrics else thresholds))
    except OSError as problem:
        print("dpro: %s: can't be written: %s" % (path, problem.strerror), file=sys.stderr)
        return SYSTEM
    return 0
