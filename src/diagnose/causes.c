/* The table of causes. Rows claim time in the table's order: what is told apart best comes first,
 * what takes the rest last. */
#include "diagnose/causes.h"

#include "graph/names/names.h"

/* Of which jobs a next step is. */
enum whose {
    ANY,
    STAGES, /* a timeline of them, which commands refuse */
    PYTORCH,
    NO_CPU,  /* nothing was recorded of it */
    KERNELS, /* noise of them */
    ONE_RANK,
    ONE_CALL,   /* of a recording that may hold the first ones */
    SOME_RANKS, /* others were not recorded */
    RECURS,     /* in every so many iterations */
    SINCE,      /* in all from one on, which is behind most of them */
    SERVED,     /* by parameter servers; and dpro can change how, as in what follows */
    BUCKETED,
    SHARDED,
    STAGED,
    N_WHOSE
};

#define CHANGED                                                                                    \
    "Find out what changed (%s): work of the job itself that begins there, other processes on "    \
    "the host, a device that throttles."
#define SHRINK(searched, told)                                                                     \
    "Hide or shrink communication: 'dpro optimize' searches for " searched                         \
    ", 'dpro whatif' tells the gain of " told ". Most of it is %s."

/* Next steps, the first that fits; %s: the cause's largest part, then why commands can't change it.
 */
static const struct next_step {
    const char *cause;
    enum whose whose;
    const char *text;
} next_steps[] = {
    {"start_apart", ANY,
     "Record 3 iterations or more: a single one does not tell whether ranks begin it apart or "
     "their recorders did. Most of it is %s."},
    {"recompilation", ANY,
     "Find out what is compiled again (TORCH_LOGS=recompiles), such as other shapes."},
    {"garbage_collection", ANY,
     "Collect garbage on all ranks at once and seldom (gc.freeze, gc.disable)."},
    {"slow_iterations", NO_CPU,
     "Record what CPUs do, too (ProfilerActivity.CPU): nothing else tells why GPUs wait in these "
     "iterations (%s)."},
    {"slow_iterations", RECURS,
     "Find out whether that is needed as often; it is part of the job, so its iterations belong "
     "to the mean. Most of it: %s."},
    {"slow_iterations", SINCE, CHANGED},
    {"slow_iterations", ANY,
     "Find out what takes longer in these iterations (%s), or leave them out "
     "(--steps) if the job was warming up."},
    {"slow_link", ANY,
     "Look at the network of %s (cables, ports, other jobs), or place ranks so that less "
     "is sent over it."},
    {"uneven_work", ANY,
     "Even out the work: samples of like length in one batch, packed sequences, tokens "
     "balanced over ranks. Most of it is on %s."},
    {"noise", SINCE, CHANGED},
    {"noise", KERNELS,
     "Find out what slows GPUs down now and then, most often %s: clocks and temperature, other "
     "processes on them, or inputs that differ between ranks."},
    {"noise", NO_CPU,
     "Record what CPUs do, too (ProfilerActivity.CPU): nothing else tells why %s waits."},
    {"noise", ONE_RANK,
     "Find out what pauses the job: garbage collection (gc.freeze, gc.disable), other processes "
     "on the host, a device that throttles."},
    {"noise", ANY,
     "Find out what pauses single ranks, most often %s: garbage collection (gc.freeze, "
     "gc.disable), other processes on the host, a device that throttles."},
    {"slow_rank", ANY,
     "Look at %s: other processes on the host, temperature and clocks of the device, the "
     "cores that processes are bound to."},
    {"uneven_stages", ANY,
     "Move layers from %s to other stages; if it has no more of them than these, look "
     "at its devices and hosts: times alone can't tell which it is."},
    {"input", ANY,
     "Load input ahead of time (more workers of the loader, a longer queue) and copy it from "
     "pinned memory on a stream of its own. Most of it is %s."},
    {"allocator", ANY,
     "Keep memory instead of allocating and freeing it in each iteration, or leave the "
     "allocator more room (expandable segments). Most of it is %s."},
    {"recomputation", ANY,
     "Recompute fewer modules, as far as memory allows: those that the job's script recomputes "
     "(torch.utils.checkpoint), or a plan does ('dpro optimize --memory')."},
    {"sync", ANY,
     "Wait for the GPU less often: read losses and lengths back seldom (.item(), .cpu()), and "
     "copy with non_blocking=True from pinned memory. Most of it is %s."},
    {"copies", ANY,
     "Copy less between the host and the GPU, and from pinned memory. Most of it is %s."},
    {"python_gaps", STAGES,
     "Find out what workers do between the listed ops, most of all %s: a profile of some of them "
     "names it."},
    {"python_gaps", PYTORCH,
     "Find out what the job does between ops, most of all %s: a profile with Python's stacks "
     "(with_stack=True) names it."},
    {"python_gaps", ANY,
     "Find out what the job does between ops, most of all %s: a profiler of Python (py-spy, "
     "cProfile) beside the framework's names it."},
    {"bucket_order", ANY,
     "Send each bucket when it is ready: gradients in buckets by the order in which they are "
     "ready (DDP does so from the 2nd iteration, but not with find_unused_parameters), and no "
     "hook that holds them back. Most of it is %s."},
    {"small_messages", ANY,
     "Send fewer, larger messages: larger buckets (bucket_cap_mb), or several tensors "
     "in one collective. Most of it is %s."},
    {"launch", STAGES,
     "Find out what workers do between passes: a profile of some of them names it."},
    {"launch", NO_CPU,
     "Record what CPUs do, too (ProfilerActivity.CPU): nothing else tells launching from loading "
     "input, from Python and from waiting."},
    {"launch", ONE_CALL,
     "Record 3 iterations or more, later ones: most of it is one call, and the first calls of a "
     "job create the GPU's context and load its code."},
    {"launch", PYTORCH,
     "Launch less: torch.compile, captured graphs of kernels, fused kernels or a larger batch."},
    {"launch", ANY, "Launch less: a compiled step (XLA), fused ops or a larger batch."},
    {"pipeline_bubbles", ANY,
     "Use more micro-batches, or a schedule that idles less (interleaved 1F1B, zero "
     "bubble). Most of it: %s."},
    {"communication", STAGES, "Hide or shrink communication. Most of it is %s."},
    {"communication", SOME_RANKS,
     "Record all ranks: with only some of them, waiting for the others looks like transfers, and "
     "faster links may win little of it. Most of it is %s."},
    {"communication", SERVED, SHRINK("other ways to send it", "more servers (--servers)")},
    {"communication", BUCKETED, SHRINK("other buckets", "faster links and of compression")},
    {"communication", SHARDED,
     SHRINK("other units that are kept between their passes", "faster links")},
    {"communication", STAGED, SHRINK("other micro-batches and schedules", "faster links")},
    {"communication", ANY,
     "Hide or shrink communication. Most of it is %s. 'dpro optimize' can't change it here: %s."},
    {"contention", ANY,
     "Send fewer bytes (compression, larger batches), or give communication its own cores or "
     "multiprocessors. Most of it is felt %s."},
};

/* The largest part; of ranks, with those that have nearly as much. */
static const char *most_of(const struct dpro_cause *cause, struct arena *arena)
{
    enum { MOST = 4 };
    const struct dpro_cause_part *parts = cause->parts;
    const char *most = cause->n_parts > 0 ? parts[0].what : "all alike";
    for (uint32_t i = 1; i < MIN(cause->n_parts, MOST); i++)
        if (strstr(parts[0].what, "rank ") && strstr(parts[i].what, "rank ") &&
            (double)parts[i].blame_ns > 0.8 * (double)parts[0].blame_ns)
            most = arena_format(arena, "%s, %s", most, parts[i].what);
    return most;
}

/* What halves of micro-batches, or of stages, would win of a timeline of stages: stages wait for
 * half as long where they wait for a half. */
static const char *halves_win(const struct diagnosed *d, const struct dpro_cause *cause,
                              struct arena *arena)
{
    const struct pipeline *p = &d->pipeline;
    double ms = (double)MIN(cause->alone_ns, cause->blame_ns) / 2e6;
    return arena_format(
        arena,
        "%s %u micro-batches in place of %u, of half as many samples each,%s would win %.*f ms, "
        "if a half takes half the time.",
        cause->next_step, 2 * p->n_micro_batches, p->n_micro_batches,
        p->n_micro_batches % p->n_stages == 0
            ? " or twice as many chunks of the model on each stage,"
            : "",
        ms < 10, ms);
}

void cause_advise(const struct diagnosed *d, struct arena *arena, struct dpro_cause *cause)
{
    const char *part = most_of(cause, arena);
    const struct slow_kind *kind =
        strcmp(cause->cause, "slow_iterations") == 0 ? slow_kind_of(part) : NULL;
    struct dpro_error why;
    bool talks = strcmp(cause->cause, "communication") == 0, serves = false;
    bool changes = talks && dpro_model_check(d->g, &why) == 0;
    memory_check();
    for (uint32_t op = 0; op < d->g->n_ops; op++)
        serves |= d->g->kind[op] == DPRO_OP_PUSH || d->g->kind[op] == DPRO_OP_PULL;
    enum { FEWEST = 3 };
    const int64_t *number = d->g->sample_number;
    uint32_t n = cause->n_iterations; /* 0: it is in most */
    bool since = n >= FEWEST && cause->iterations[0] == number[d->n_iterations - n];
    if (since &&
        (strcmp(cause->cause, "noise") == 0 || strcmp(cause->cause, "slow_iterations") == 0))
        part = arena_format(arena, "%s from iteration %" PRId64 " on", part, cause->iterations[0]);
    const bool fits[N_WHOSE] = {
        [ANY] = true,
        [STAGES] = d->g->of_stages,
        [PYTORCH] = d->g->framework && strcmp(d->g->framework, "pytorch") == 0,
        [NO_CPU] = lacks_cpu(d->g),
        [KERNELS] = text_begins(part, "kernels"),
        [ONE_RANK] = d->g->n_ranks == 1 && d->g->world_size <= 1,
        [ONE_CALL] = d->g->single_iteration && cause->n_evidence > 0 &&
                     cause->evidence[0].ns > cause->blame_ns / 2,
        [SOME_RANKS] = d->g->n_ranks < d->g->world_size,
        [SINCE] = since,
        [RECURS] = strstr(part, ", every ") != NULL,
        [SERVED] = changes && serves,
        [BUCKETED] = changes,
        [SHARDED] = dpro_graph_is_sharded(d->g),
        [STAGED] = talks && d->pipeline.dimension != DPRO_NO_DIMENSION && !d->pipeline.unknown,
    };
    if (kind)
        cause->next_step = arena_format(arena, "%s: %s.", part, kind->advice);
    EACH_OF (const struct next_step, step, next_steps, sizeof next_steps / sizeof *next_steps) {
        const char *text = step->text, *at = strstr(text, "%s"), *then = at ? at + 2 : text;
        const char *more = strstr(then, "%s");
        int n_before = at ? (int)(at - text) : 0,
            n_then = more ? (int)(more - then) : (int)strlen(then);
        if (strcmp(step->cause, cause->cause) == 0 && !cause->next_step && fits[step->whose])
            cause->next_step =
                arena_format(arena, "%.*s%s%.*s%s%s", n_before, text, at ? part : "", n_then, then,
                             more ? why.text : "", more ? more + 2 : "");
    }
    if (strcmp(cause->cause, "pipeline_bubbles") == 0 && d->g->of_stages &&
        d->pipeline.n_micro_batches > 0)
        cause->next_step = halves_win(d, cause, arena);
    const struct dpro_evidence *first = cause->evidence;
    if (cause->n_evidence > 0 && first->iteration >= 0 &&
        (strcmp(cause->cause, "noise") == 0 || strcmp(cause->cause, "uneven_work") == 0))
        cause->next_step = arena_format(
            arena, "%s Look first at %.60s of rank %d in iteration %" PRId64 ".", cause->next_step,
            strtab_get(&d->g->names, d->g->name[first->op]), first->rank, first->iteration);
}

/* Faults are taken away first, then what lets a fault be felt (were there no call that waits for
 * the GPU, the CPU would be ahead of it, and pauses and launches would hold nothing up), then what
 * every job has some of, and what that does to others last. */
enum { FAULT, HABIT, COST, EFFECT };

enum { ANYWHERE, WITH_GPU };

#define ROW(...)                                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
const struct cause_row cause_rows[] = {
    ROW("start_apart", "ranks start apart", FAULT, ANYWHERE, .find = find_start_apart),
    ROW("input", "loading and copying input", FAULT, ANYWHERE, .work = WORK_INPUT,
        .named = "DataLoader"),
    ROW("allocator", "allocating and freeing GPU memory", FAULT, WITH_GPU, .work = WORK_MEMORY,
        .named = "allocating and freeing GPU memory"),
    ROW("recompilation", "torch.compile compiles again", FAULT, ANYWHERE, .named = "torch.compile"),
    ROW("garbage_collection", "Python collects garbage", FAULT, ANYWHERE,
        .named = "garbage collection"),
    ROW("slow_iterations", "unusual iterations take longer than the others", FAULT, ANYWHERE,
        .find = find_slow_iterations),
    ROW("slow_link", "slow links: slower than others of their class", FAULT, WITH_GPU,
        .find = find_slow_links),
    ROW("uneven_work", "uneven work: ranks have more of it than their peers", FAULT, WITH_GPU,
        .find = find_uneven_work),
    ROW("noise", "pauses and noise: times that vary between iterations", FAULT, WITH_GPU,
        .find = find_noise),
    ROW("slow_rank", "slow ranks: slower than their peers on the same work", FAULT, WITH_GPU,
        .find = find_slow_ranks),
    ROW("uneven_stages", "uneven stages: some of the pipeline compute more", FAULT, WITH_GPU,
        .find = find_uneven_stages),
    ROW("recomputation", "the forward pass is computed again", FAULT, WITH_GPU,
        .find = find_recomputing),
    ROW("python_gaps", "gaps between ops of CPU threads: Python, the framework", FAULT, ANYWHERE,
        .find = find_gaps),
    ROW("sync", "the CPU waits for the GPU", HABIT, WITH_GPU, .find = find_syncs,
        .work = WORK_SYNC),
    ROW("copies", "copies of memory", HABIT, WITH_GPU, .work = WORK_COPY),
    ROW("small_messages", "messages too small for their latency", HABIT, WITH_GPU,
        .find = find_small_messages),
    ROW("bucket_order", "gradients are sent only when the backward pass is over", HABIT, WITH_GPU,
        .find = find_bucket_order),
    ROW("launch", "launching: the CPU is behind the GPU", COST, WITH_GPU, .find = find_launches),
    ROW("pipeline_bubbles", "stages of the pipeline wait for each other", COST, WITH_GPU,
        .find = find_bubbles),
    ROW("communication", "communication that nothing hides", COST, WITH_GPU,
        .find = find_communication),
    ROW("contention", "communication slows down the computation beside it", EFFECT, WITH_GPU,
        .find = find_contention),
};
const uint32_t n_cause_rows = sizeof cause_rows / sizeof *cause_rows;

void cause_find(const struct cause_row *row, const struct diagnosed *d, struct cause_found *found)
{
    if (d->g->lacks_gpu && row->needs_gpu) {
        found->needs = "The GPU's work was not recorded.";
        return;
    }
    if (row->work != WORK_NONE)
        find_work(d, found, row->work);
    if (row->named)
        find_named(d, found, row->named);
    if (row->find)
        row->find(d, found);
}
