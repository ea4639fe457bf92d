"""Answers programs that speak the Model Context Protocol, over stdio, about the traces in a folder and no others:

    python -m dpro.mcp FOLDER

Its tools are the commands, their answers what the commands print with --json; nothing is written. Needs the package mcp."""
import json
import os
import sys

from . import Error, __version__, layouts, library, optimizer

_TEXT, _WHOLE, _YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_TEXTS, _ABOVE_0 = {"type": "array", "items": _TEXT}, {"type": "number", "exclusiveMinimum": 0}
_TRACE = {"type": ["string", "array"], "items": _TEXT, "description": "a trace directory or file in the server's folder, or several files"}
_OF_JOB = {"steps": {"type": "array", "items": _WHOLE, "minItems": 2, "maxItems": 2, "description": "the first and last iteration to use"},
           "rank_regex": {**_TEXT, "description": "finds the rank in a file's name"}, "step_mark": _TEXT,
           "dimensions": {**_TEXT, "description": "dimensions of parallelism, such as dp=2,tp=4"},
           "keep_profiler": {**_YES, "description": "leave in what recording cost"}, "probes": {**_TEXT, "description": "a file of probes"}}
_KEYS = {**_TEXTS, "description": "only these keys of the answer; all where it is not given"}
_REPLAY = {"samples": _WHOLE, "seed": _WHOLE, "delays": _TEXTS, "bandwidth_bytes_per_s": _ABOVE_0}
_OPTIMIZE = {"memory": {"type": ["integer", "string"], "description": "what a rank may hold: bytes, or a share such as 80%"},
             "allow": {"type": "array", "items": {"enum": ["compile", "bf16", "assumed"]}},
             "compress": {"type": "array", "items": {"enum": sorted(layouts.COMPRESSION)}}, "accumulate": _YES, "seed": _WHOLE,
             "budget_s": _ABOVE_0}
_AGAINST = {"against": {**_TEXT, "description": "a trace of the job when it was faster, or a saved diagnosis"}}
_BY_TYPE = {"switch": _YES, "rate": _ABOVE_0, "ratio": _ABOVE_0, "text": _TEXT, "path": _TEXT, "precision": _TEXT, "texts": _TEXTS,
            "added_time": {"type": "integer"}, "schedule": {"enum": [name for name in layouts.SCHEDULE if name != "unknown"]},
            "compression": {"enum": sorted(layouts.COMPRESSION)},
            "speeds": {"type": "array", "items": {"type": "object", "required": ["speed"], "properties": {
                "speed": _ABOVE_0, "first_rank": _WHOLE, "last_rank": _WHOLE, "processor": {"enum": sorted(layouts.PROCESSOR)}}}}}
_MOST_ROWS, _MOST_BYTES = 1000, 1 << 20


def _changes():
    """(The schema of each what-if, the names of those that are paths), from the library's table."""
    names, found, paths = {value: name for name, value in layouts.CHANGE_TYPE.items()}, {}, set()
    for kind in library.change_kinds():
        for field in kind.fields:
            if field.name:
                name, type_name = field.name.decode(), names[field.type]
                found[name] = {**_BY_TYPE.get(type_name, _WHOLE), "description": " ".join(kind.help.decode().split())}
                paths |= {name} if type_name == "path" else set()
    return found, paths


class Server:
    """Answers about the traces in `folder`: tools(), call(name, arguments)."""

    def __init__(self, folder):
        self.root = os.path.realpath(folder)
        if not os.path.isdir(self.root):
            raise Error("%s is no folder" % folder)
        changes, self._paths = _changes()
        self._paths |= {"against", "probes"}
        self._job = self._job_key = None
        self._tools = {
            "traces": ("What lies in the server's folder, or in one within it; folders end in /.", {"folder": _TEXT}, ()),
            "replay": ("Where an iteration of the job goes: predicted and measured time, ranks, critical path, memory (dpro replay).",
                       {"trace": _TRACE, "keys": _KEYS, **_REPLAY, **_OF_JOB}, ("trace",)),
            "diagnose": ("Why an iteration is slow: causes, in milliseconds that add up, and next steps (dpro diagnose).",
                         {"trace": _TRACE, "keys": _KEYS, **_AGAINST, **_OF_JOB}, ("trace",)),
            "whatif": ("The iteration if something were otherwise; without changes, what can be asked of the job (dpro whatif).",
                       {"trace": _TRACE, "keys": _KEYS, **changes, **_OF_JOB}, ("trace",)),
            "optimize": ("The communication and memory strategy that makes an iteration shortest (dpro optimize); it writes no plan.",
                         {"trace": _TRACE, "keys": _KEYS, **_OPTIMIZE, **_OF_JOB}, ("trace",)),
            "table": ("Rows of a table of the job: ops, edges, collectives, ...; without its name, what tables and columns there are.",
                      {"trace": _TRACE, "table": _TEXT, "rank": _WHOLE, "first": _WHOLE,
                       "rows": {"type": "integer", "minimum": 1, "maximum": _MOST_ROWS}, **_OF_JOB}, ("trace",))}

    def tools(self):
        """(name, description, the schema of the arguments, that of the answer)"""
        for name, (description, properties, required) in self._tools.items():
            answer = {"type": "object"}
            if name not in ("traces", "table"):
                answer = {"type": "object", "properties": {"schema": {"const": "dpro.%s/1" % name}}}
            yield name, description, {"type": "object", "properties": properties, "required": list(required),
                                      "additionalProperties": False}, answer

    def _holds(self, path):
        return path == self.root or path.startswith(os.path.join(self.root, ""))

    def _inside(self, name, value, within=True):
        """The path, and what lies there with sizes and times: nothing of it, through no link, may be outside the folder.
        `within`: what lies in it, too."""
        path = os.path.realpath(os.path.join(self.root, os.fsdecode(library.text_of(name, value))))
        todo, seen = [path], {}
        while todo:
            at = todo.pop()
            if not self._holds(at):
                raise Error("%s=%r %s outside the folder that this server answers about" %
                            (name, value, "is" if at == path else "has a link to what is"))
            if at not in seen:
                try:
                    is_at = os.stat(at)
                    seen[at] = is_at.st_size, is_at.st_mtime_ns
                    todo += [os.path.realpath(entry.path) for entry in os.scandir(at)] if within and os.path.isdir(at) else []
                except OSError as reason:
                    raise Error("%s=%r can't be read: %s" % (name, value, reason.strerror)) from None
        return path, seen

    def _opened(self, arguments):
        """The job of the arguments, which are taken out of them; the last one stays open, until its files change."""
        trace = arguments.pop("trace")
        found = [self._inside("trace", path) for path in ([trace] if isinstance(trace, str) else library.list_of("trace", trace, "paths"))]
        options = {name: arguments.pop(name) for name in _OF_JOB if name in arguments}
        key = json.dumps([found, options], sort_keys=True)
        if key != self._job_key:
            self._job_key, self._job = None, optimizer.Job([path for path, _ in found], **options)
            self._job_key = key
        return self._job

    def call(self, name, arguments):
        """What a tool answers, a dict; raises a dpro.Error that says why not."""
        if name not in self._tools:
            raise Error("no tool is called %s; tools are %s" % (name, ", ".join(self._tools)))
        _, known, required = self._tools[name]
        unknown = [argument for argument in arguments if argument not in known]
        if unknown or not set(required) <= set(arguments):
            raise Error("%s is not known; what is: %s" % (unknown[0], ", ".join(known)) if unknown else "trace is missing")
        arguments = {argument: self._inside(argument, value)[0] if argument in self._paths else value
                     for argument, value in arguments.items() if value is not None}
        if name == "traces":
            return self._traces(arguments.get("folder", "."))
        job, keys = self._opened(arguments), arguments.pop("keys", None)
        if name == "table":
            return _rows(job, **arguments)
        against = arguments.get("against")
        if against and os.path.isdir(against):
            arguments["against"] = optimizer.Job(against)
        answer = getattr(job, name)(**arguments)
        unknown = [key for key in library.list_of("keys", keys or [], "texts") if key not in answer]
        if unknown:
            raise Error("keys: the answer has no %s; it has %s" % (unknown[0], ", ".join(answer)))
        asked = {key: answer[key] for key in ["schema", *(keys or answer)]}
        sizes = {key: len(json.dumps(value)) for key, value in asked.items()}
        if sum(sizes.values()) > _MOST_BYTES:
            raise Error("the answer has %.1f MB; ask for other keys of it, without the largest, which are %s; ask for a table in parts" %
                        (sum(sizes.values()) / 1e6, ", ".join("%s (%.1f MB)" % (key, sizes[key] / 1e6)
                                                              for key in sorted(sizes, key=sizes.get)[:-4:-1])))
        return asked

    def _traces(self, folder):
        at, _ = self._inside("folder", folder, within=False)
        if not os.path.isdir(at):
            raise Error("folder=%r is no folder" % folder)
        return {"names": sorted(entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(at)
                                if self._holds(os.path.realpath(entry.path)))}


def _rows(job, table=None, rank=0, first=0, rows=100):
    if table is None:
        first_of = {name: found[0] if isinstance(found, list) else found for name, found in job.tables.items() if found}
        return {"tables": {name: {"meaning": one.meaning, "rows": one.n_rows,
                                  "columns": {column: [of.unit, of.meaning] for column, of in one.items()}}
                           for name, one in first_of.items()}}
    found = job.tables.get(table)
    if found is None:
        raise Error("no table is called %s; tables are %s" % (table, ", ".join(job.tables)))
    if isinstance(found, list):
        rank = library.number("rank", library.c.c_uint32, rank, 0)
        if rank >= len(found):
            raise Error("rank=%d: the job has %d" % (rank, len(found)))
        found = found[rank]
    first, rows = (library.number(name, library.c.c_uint32, value, 0) for name, value in (("first", first), ("rows", rows)))
    shown = range(first, min(first + min(rows, _MOST_ROWS), found.n_rows))
    return {"table": table, "columns": ["id", *found], "rows_in_all": found.n_rows,
            "rows": [[row, *(column[row] for column in found.values())] for row in shown]}


async def _serve(server):
    import anyio
    import mcp.types as types
    from mcp.server.lowlevel import Server as Protocol
    from mcp.server.stdio import stdio_server

    one_at_a_time = anyio.Lock()
    hints = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

    async def on_list_tools(_, __):
        return types.ListToolsResult(tools=[
            types.Tool(name=name, description=told, input_schema=given, output_schema=answer, annotations=hints)
            for name, told, given, answer in server.tools()])

    async def on_call_tool(_, asked):
        try:
            async with one_at_a_time: answer = await anyio.to_thread.run_sync(server.call, asked.name, asked.arguments or {})
        except Error as problem:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(problem))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=json.dumps(answer))], structured_content=answer)

    protocol = Protocol("dpro", version=__version__, on_list_tools=on_list_tools, on_call_tool=on_call_tool,
                        instructions="Diagnoses recorded distributed training jobs in %s. Begin with traces, then diagnose." % server.root)
    async with stdio_server() as (reads, writes): await protocol.run(reads, writes, protocol.create_initialization_options())


def main(args):
    if len(args) != 1 or args[0].startswith("-"):
        print("usage: python -m dpro.mcp FOLDER   (answers about the traces in FOLDER, by the Model Context Protocol over stdio)",
              file=sys.stderr)
        return 0 if args in (["-h"], ["--help"]) else 2
    try:
        import anyio
        import importlib.metadata
        if int(importlib.metadata.version("mcp").split(".")[0]) < 2:
            raise ImportError
    except (ImportError, ValueError):
        print("dpro: python -m dpro.mcp needs the package mcp, 2 or later: pip install 'dpro[mcp]'", file=sys.stderr)
        return 2
    try:
        anyio.run(_serve, Server(args[0]))
    except Error as problem:
        print("dpro: %s" % problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
