/* dpro export: what a trace holds, in forms that other programs read. */
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "launch.h"

enum form { CSV, PARQUET, SQLITE, GRAPHML, CHAKRA, PERFETTO, N_FORMS };

struct rank_range {
    int first, n; /* 0: all */
};

struct values {
    struct cmd_values common;
    const char *output, *to[N_FORMS];
    struct rank_range ranks;
    bool net_csv, list;
};

/* R or A-B. */
static bool read_rank_range(const char *text, void *field)
{
    struct rank_range *range = field;
    int last, end = 0;
    char *dash = strchr(text, '-');
    if (text[strspn(text, "0123456789-")] || !isdigit((unsigned char)text[0]))
        return false;
    if (sscanf(text, dash ? "%9d-%9d%n" : "%9d%n", &range->first, dash ? &last : &end, &end) < 1)
        return false;
    last = dash ? last : range->first;
    range->n = last - range->first + 1;
    return text[end] == '\0' && range->n > 0;
}

#define AT(member) offsetof(struct values, member)
static const struct opt export_opts[] = {
    {.name = "csv",
     .arg = "DIR",
     .read = opt_read_string,
     .offset = AT(to[CSV]),
     .form = "a folder",
     .help = "every table of the job, NAME.csv in DIR: ops, edges,\ncollectives, messages, "
             "iterations, memory, critical\npath, ...",
     .complete = OPT_COMPLETE_FOLDER},
    {.name = "parquet",
     .arg = "DIR",
     .read = opt_read_string,
     .offset = AT(to[PARQUET]),
     .form = "a folder",
     .help = "the same as NAME.parquet in DIR; needs python3 with\npyarrow",
     .complete = OPT_COMPLETE_FOLDER},
    OPT_PATH(
        "sqlite", "FILE", to[SQLITE], "a file",
        "the same tables as a SQLite database; its table\n'columns' says what the columns are"),
    OPT_PATH("graphml", "FILE", to[GRAPHML], "a file",
             "the global data-flow graph as GraphML; compressed\nif FILE ends in .gz"),
    {.name = "chakra",
     .arg = "DIR",
     .read = opt_read_string,
     .offset = AT(to[CHAKRA]),
     .form = "a folder",
     .help = "the graph as Chakra execution traces, job.RANK.et\nand comm_group.json in DIR",
     .complete = OPT_COMPLETE_FOLDER},
    OPT_PATH("perfetto", "FILE", to[PERFETTO], "a file",
             "the timeline, measured and replayed, as Perfetto's\nown trace format"),
    OPT_VALUE("ranks", "A-B", read_rank_range, ranks, "a rank, or A-B",
              "of --graphml: only the ops of these ranks"),
    OPT_VALUE("iteration", "N", cmd_read_iteration, common, "the number of an iteration",
              "of --graphml and --perfetto: the times of iteration\nN (default: means, the one "
              "nearest to the prediction)"),
    OPT_FLAG("list", list, "list the tables and their columns, as Markdown"),
    OPT_FLAG("net-csv", net_csv,
             "the transport logs, one line a socket call:\nnet_rank<R>.csv.gz for each rank"),
    OPT_OUTPUT("write the transport logs into DIR"),
    CMD_OPTS_GRAPH("use iterations A to B, both included, in the job's\nown numbers (default: all)",
                   CMD_THREADS_READ),
    {.name = NULL},
};

static int export_net(const struct values *values, struct dpro_job *job)
{
    const struct dpro_trace *trace;
    struct dpro_error err = {.code = 0};
    if (dpro_job_trace(job, &trace, &err) < 0 ||
        dpro_trace_export_net_csv(trace, values->output, &err) < 0)
        return cmd_fail(&err);
    uint32_t n = dpro_trace_transport(trace).n_processes;
    if (!values->common.quiet)
        cmd_say("wrote the transport log%s of %u process%s to %s", n == 1 ? "" : "s", n,
                n == 1 ? "" : "es", values->output);
    return CMD_DONE;
}

/* The Python package writes Parquet: Arrow's libraries are large, and who reads such files has
 * them.
 */
static int export_parquet(const struct values *values, const struct opt_list *paths)
{
    const struct dpro_job_options *job = &values->common.job;
    const char *argv[16 + paths->n];
    char numbers[2][64], texts[2][PATH_MAX];
    struct opt_list args = {.items = argv};
    snprintf(numbers[0], sizeof numbers[0], "threads=%d", job->threads);
    snprintf(numbers[1], sizeof numbers[1], "steps=%" PRId64 ":%" PRId64, job->first_step,
             job->last_step);
    snprintf(texts[0], sizeof texts[0], "rank_regex=%s", job->rank_regex ? job->rank_regex : "");
    snprintf(texts[1], sizeof texts[1], "step_mark=%s", job->step_mark ? job->step_mark : "");
    const char *const all[] = {values->to[PARQUET],
                               numbers[0],
                               job->first_step != 0 || job->last_step != 0 ? numbers[1] : NULL,
                               job->rank_regex ? texts[0] : NULL,
                               job->step_mark ? texts[1] : NULL,
                               job->no_align ? "no_align=1" : NULL,
                               job->raw_receives ? "raw_receives=1" : NULL,
                               "--"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            argv[args.n++] = all[i];
    for (size_t i = 0; i < paths->n; i++)
        argv[args.n++] = paths->items[i];
    int code = launch_module("export", "dpro.parquet", &args);
    if (code == 0 && !values->common.quiet)
        cmd_say("wrote tables to %s; 'dpro export --list' says what their columns are",
                values->to[PARQUET]);
    return code;
}

static int write_tables(const struct values *values, struct dpro_job *job, struct dpro_error *err)
{
    const struct dpro_tables *tables;
    if (dpro_job_tables(job, &tables, err) < 0)
        return err->code;
    return values->to[CSV] ? dpro_tables_csv(tables, values->to[CSV], NULL, err)
                           : dpro_tables_sqlite(tables, values->to[SQLITE], err);
}

static int write_graph(const struct values *values, struct dpro_job *job, struct dpro_error *err)
{
    struct dpro_report report;
    const struct dpro_job_replay_options options = {.size = sizeof options, .no_validate = 1};
    if (dpro_job_replay(job, &options, &report, err) < 0)
        return err->code;
    struct dpro_graphml graphml = {.graph = report.graph,
                                   .shown_iteration = values->common.job.shown != NULL,
                                   .first_rank = values->ranks.first,
                                   .n_ranks = values->ranks.n};
    if (values->to[GRAPHML])
        return dpro_graphml_write(&graphml, values->to[GRAPHML], err);
    if (values->to[PERFETTO])
        return dpro_report_perfetto(&report, values->to[PERFETTO], err);
    return dpro_chakra_write(report.graph, report.replay, values->to[CHAKRA], &report.sink, err);
}

static int export_job(const struct values *values, struct dpro_job *job, enum form form)
{
    static const char *const wrote[N_FORMS] = {
        [CSV] = "tables to %s; 'dpro export --list' says what their columns are",
        [SQLITE] = "tables to %s; try: sqlite3 %s 'SELECT * FROM columns'",
        [GRAPHML] = "the graph to %s",
        [CHAKRA] = "Chakra traces to %s",
        [PERFETTO] = "the timeline to %s; open it in ui.perfetto.dev"};
    struct dpro_error err = {.code = 0};
    int code = job_check_output(job, values->to[form]);
    if (code != 0)
        return code;
    if ((form <= SQLITE ? write_tables : write_graph)(values, job, &err) < 0)
        return cmd_fail(&err);
    if (!values->common.quiet) {
        char text[64 + 2 * PATH_MAX];
        snprintf(text, sizeof text, wrote[form], values->to[form], values->to[form]);
        cmd_say("wrote %s", text);
    }
    return CMD_DONE;
}

/* What is asked for makes no sense together; NULL: it does. */
static const char *find_contradiction(const struct values *values, int n_asked, size_t n_paths)
{
    if (n_asked > 1)
        return "export writes one thing at a time: give one of --csv, --parquet, --sqlite, "
               "--graphml, --chakra, --perfetto, --net-csv and --list";
    if (n_asked == 0)
        return "export needs to be told what, by one of --csv DIR, --parquet DIR, --sqlite FILE, "
               "--graphml FILE, --chakra DIR, --perfetto FILE, --net-csv and --list; see 'dpro "
               "help export'";
    if (values->output && !values->net_csv)
        return "-o is for --net-csv only: leave it out";
    if (values->ranks.n > 0 && !values->to[GRAPHML])
        return "--ranks chooses what --graphml writes; leave it out";
    if (values->common.job.shown && !values->to[GRAPHML] && !values->to[PERFETTO])
        return "--iteration chooses what --graphml and --perfetto write; leave it out";
    if (values->list)
        return NULL;
    if (n_paths == 0)
        return "export needs a trace: a folder, files or a glob; see 'dpro help export'";
    return values->net_csv && !values->output
               ? "export needs a folder to write into: -o DIR; see 'dpro help export'"
               : NULL;
}

static int run(const void *given, const struct opt_list *paths)
{
    struct values values = *(const struct values *)given;
    struct dpro_error err = {.code = 0};
    struct dpro_job *job;
    enum form form = CSV;
    int n_asked = values.list + values.net_csv;
    for (enum form f = CSV; f < N_FORMS; f++)
        if (values.to[f]) {
            form = f;
            n_asked++;
        }
    const char *wrong = find_contradiction(&values, n_asked, paths->n);
    if (wrong) {
        cmd_say("%s", wrong);
        return CMD_USAGE;
    }
    if (values.list)
        return dpro_tables_list(cmd_output(), &err) < 0 ? cmd_fail(&err)
                                                        : cmd_finish_output(CMD_DONE);
    if (values.to[PARQUET])
        return export_parquet(&values, paths);
    values.common.job.without_profile = values.net_csv;
    int code = job_open(paths->items, paths->n, &values.common, &job);
    if (code == 0)
        code = values.net_csv ? export_net(&values, job) : export_job(&values, job, form);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_export = {
    .name = "export",
    .summary = "write what a trace holds in forms that other programs read",
    .usage = "--csv DIR PATH...",
    .description =
        "Reads the traces of a job (PATH is a trace directory, a file or a glob), and writes the\n"
        "tables of the job as CSV, Parquet or SQLite: its ops and edges, collectives, messages,\n"
        "iterations, memory, aligned clocks and critical path; or its global data-flow graph as\n"
        "GraphML or as Chakra execution traces; or its timeline for Perfetto; or the transport\n"
        "logs of its ranks, one line a socket call: when, which bytes of which connection, and\n"
        "which gloo message began with them.",
    .examples =
        "  dpro export --csv tables/ dpro_trace/\n"
        "  python3 -c 'import pandas; print(pandas.read_csv(\"tables/ops.csv\"))'\n"
        "  dpro export --sqlite job.db dpro_trace/\n"
        "  sqlite3 job.db 'SELECT kind, SUM(dur_ns) / 1e6 FROM ops GROUP BY kind'\n"
        "  dpro export --perfetto job.pftrace dpro_trace/        open it in ui.perfetto.dev\n"
        "  dpro export --list                            what the columns are\n"
        "  dpro export --net-csv -o csv/ dpro_trace/",
    .opts = export_opts,
    .values_size = sizeof(struct values),
    .run = run,
};
