/* dpro optimize: search the strategy that makes an iteration shortest; write it as a plan that the
 * job takes. */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "progress.h"
#include "units.h"

/* Options are read into `options` where one of its fields has the value. */
struct values {
    struct cmd_values common;
    struct dpro_optimize_options options;
    const char *output;
    struct opt_list passes;
};

static const char *const algorithms[] = {"default", "paper", "dp", NULL};
static const char *const compressions[] = {"none", "fp16", "bf16", NULL};

static bool read_compression(const char *text, void *field)
{
    int found = opt_find_word(text, compressions);
    *(unsigned *)field |= found > 0 ? 1u << found : 0;
    return true;
}

/* "compile,bf16" */
static bool read_allowed(const char *text, void *field)
{
    static const char *const words[] = {"compile", "bf16", "assumed", NULL};
    struct dpro_optimize_options *options = field;
    char word[16];
    for (bool more = true; more; text++) {
        size_t n = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word), text);
        int found = opt_find_word(word, words);
        if (found < 0)
            return false;
        if (found == 2)
            options->assumed_costs = 1;
        else
            options->computing |= found == 0 ? DPRO_COMPILED : DPRO_BF16;
        text += n;
        more = *text == ',';
    }
    return true;
}

/* "3", "1:4" */
static bool read_servers(const char *text, void *field)
{
    struct dpro_optimize_options *options = field;
    char least[16];
    const char *most;
    if (!units_split(text, ':', false, least, sizeof least, &most) ||
        !opt_read_u32(least, &options->least_servers) || options->least_servers == 0)
        return false;
    options->most_servers = options->least_servers;
    return most == NULL || (opt_read_u32(most, &options->most_servers) &&
                            options->least_servers <= options->most_servers);
}

/* "16GiB", "80%" */
static bool read_memory(const char *text, void *field)
{
    struct dpro_optimize_options *options = field;
    options->memory_bytes = 0;
    options->memory_share = 0;
    return units_read_bytes(text, &options->memory_bytes) ||
           units_read_percent(text, &options->memory_share);
}

static bool read_seconds(const char *text, void *field)
{
    return opt_number(text, field) && *(double *)field > 0;
}

#define AT(member) offsetof(struct values, member)
static const struct opt optimize_opts[] = {
    OPT_OUTPUT("write the strategy as a plan into DIR: plan.json, what\nHorovod and BytePS take, "
               "and a page to look at,\noptimize.html"),
    CMD_OPT_JSON("dpro.optimize/1", ""),
    OPT_CHOICE("compress", "TYPE", read_compression, options.compressions, compressions,
               "also try gradients cast to TYPE for the transfer, which\nchanges what the job "
               "computes: fp16 or bf16; may be\nrepeated (default: none)"),
    OPT_VALUE("allow", "WHAT", read_allowed, options,
              "compile, bf16, assumed, or several with commas",
              "also search which modules of the model are compiled\n(compile: fused ops round "
              "otherwise) or computed in 16\nbits (bf16), as far as a probe of the job measured "
              "what\nthat costs; with assumed, also where none did (default:\nneither)"),
    CMD_OPT_PROBES,
    OPT_VALUE("budget", "SECONDS", read_seconds, options.budget_s, "seconds above 0",
              "stop searching after that long (default: when it has\nconverged)"),
    OPT_WHOLE("finalists", opt_read_u32, options.n_finalists, 2, DPRO_MOST_FINALISTS,
              "also list, and write as plans, up to N strategies that\nthe model can't tell from "
              "the best, the fastest of each\nkind of change: a measurement chooses among them"),
    OPT_VALUE("memory", "SIZE", read_memory, options, "a size above 0 such as 16GiB, 500MB or 80%",
              "what a rank may hold, in bytes or with a unit, or as a\n"
              "share of its device: recompute as few modules, and cut\n"
              "the batch into as few parts, as fit that"),
    OPT_SWITCH("no-accumulate", options.no_accumulation,
               "with --memory: recompute only; the script stays as it is"),
    OPT_VALUE("servers", "A[:B]", read_servers, options,
              "a number of 1 or more, or two such as 1:4",
              "search with A to B parameter servers, too, and say what\neach number would win "
              "(default: as many as there are)"),
    OPT_CHOICE("algorithm", "NAME", NULL, options.algorithm, algorithms,
               "default: dynamic programming, the paper's Algorithm 1,\nlocal search; paper: "
               "Algorithm 1; dp: dynamic\nprogramming"),
    OPT_WHOLE("seed", opt_read_u64, options.seed, 0, UINT64_MAX,
              "of the search's random choices; equal seeds give equal\nresults"),
    {.name = "pass",
     .repeats = true,
     .arg = "FILE",
     .read = opt_read_list,
     .offset = AT(passes),
     .form = "a shared object such as ./x.so",
     .help = "also try what the graph pass in FILE proposes; may be\nrepeated",
     .complete = OPT_COMPLETE_PATH},
    OPT_SWITCH("no-coarsen", options.no_coarsen,
               "search without the paper's Coarsened View, to compare"),
    OPT_SWITCH("no-partial", options.no_partial, "search without partial replay, to compare"),
    OPT_SWITCH("no-symmetry", options.no_symmetry, "search without symmetry, to compare"),
    CMD_OPT_RANKS_FROM,
    CMD_OPTS_GRAPH(
        CMD_STEPS_LEARNT,
        "files read, and candidates tried, at once (default: 0,\none a core); results are "
        "the same at any number"),
    {.name = NULL},
};

/* ---- the search, which a signal ends early ---- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* The second Ctrl-C ends the command as usual. */
static void catch_interrupt(struct sigaction *before)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, before);
}

static int on_progress(void *arg, const struct dpro_optimize_progress *progress)
{
    (void)arg;
    char best[64];
    snprintf(best, sizeof best, "best %.1f of %.1f ms", (double)progress->best_ns / 1e6,
             (double)progress->baseline_ns / 1e6);
    progress_tell(best);
    return interrupted;
}

static int report(const struct values *values, const struct dpro_optimize_report *results)
{
    struct dpro_error err = {.code = 0};
    bool fits = dpro_optimum_view(results->optimum)->memory.fits;
    if (results->plan != NULL && !fits)
        cmd_say("no plan is written: nothing fits the budget");
    if (results->plan != NULL && fits) {
        if (dpro_optimize_plan(results, &err) < 0)
            return cmd_fail(&err);
        if (!values->common.quiet && !dpro_optimize_is_for_job(results))
            cmd_say("wrote a recommendation to %s (optimize.html, optimize.json): no plan can make "
                    "these changes, make them in the script",
                    results->plan);
        else if (!values->common.quiet)
            cmd_say("wrote a plan to %s%s; optimize.html in it shows the search", results->plan,
                    dpro_optimize_helps(results) ? ""
                    : dpro_optimum_view(results->optimum)->n_units > 0
                        ? ", which changes nothing"
                        : ", which keeps the job's own buckets");
    }
    int code = cmd_done((values->common.json ? dpro_optimize_json
                                             : dpro_optimize_text)(results, cmd_output(), &err),
                        &err);
    return code == CMD_DONE && !fits ? CMD_CHECK_FAILED : code;
}

static int search(const struct values *values, struct dpro_job *job)
{
    struct dpro_optimize_options options = values->options;
    struct dpro_optimize_report results;
    struct dpro_error err = {.code = 0};
    struct sigaction before;
    options.size = sizeof options;
    options.pass_files = values->passes.items;
    options.n_pass_files = values->passes.n;
    options.progress = on_progress;
    catch_interrupt(&before);
    int rc = dpro_job_optimize(job, &options, &results, &err);
    sigaction(SIGINT, &before, NULL);
    results.plan = values->output;
    return rc < 0 ? cmd_fail(&err) : report(values, &results);
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *values = given;
    const struct dpro_optimize_options *options = &values->options;
    struct dpro_job *job;
    bool for_memory = options->memory_bytes > 0 || options->memory_share > 0;
    if (options->assumed_costs && !(options->computing & DPRO_BF16)) {
        cmd_say("--allow assumed goes with bf16: write --allow bf16,assumed");
        return CMD_USAGE;
    }
    if (options->no_accumulation && !for_memory) {
        cmd_say("--no-accumulate needs a budget: give one with --memory");
        return CMD_USAGE;
    }
    int code = job_open(paths->items, paths->n, given, &job);
    if (code == 0)
        code = search(values, job);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_optimize = {
    .name = "optimize",
    .summary = "search the communication strategy that makes an iteration shortest",
    .usage = "[OPTIONS] PATH...",
    .description =
        "Learns from a job's traces what computing and communicating cost it, searches how its\n"
        "gradients travel best (in which buckets, partitions and order), and says what that\n"
        "brings, how sure it is, what the usual settings would give, and what no bucketing can\n"
        "beat. Of FSDP it searches which units are resharded, of a pipeline its micro-batches and\n"
        "schedule. Ctrl-C ends the search: the best so far is the result.",
    .examples =
        "  dpro optimize TRACE -o plan/                     and a plan for the job\n"
        "  dpro profile --plan plan/ -o TRACE2 -- torchrun --nproc_per_node 2 train.py\n"
        "                                                   run the job with it\n"
        "  dpro optimize TRACE --compress fp16 --json       16-bit transfers allowed; for "
        "programs\n"
        "  dpro optimize TRACE --memory 16GiB -o plan/      the fastest that fits\n"
        "  dpro optimize TRACE --servers 1:4                how many parameter servers are best",
    .opts = optimize_opts,
    .values_size = sizeof(struct values),
    .needs = CMD_NEEDS_TRACES,
    .processes = CMD_TOGETHER,
    .run = run,
};
