/* The table of what-ifs: a row a kind, from which come the command's options, JSON's keys, Python's
 * keywords, what a job must have, and what is applied to its model. */
#pragma once

#include "cost/change/change.h"
#include "cost/change/turns.h"

/* What a job must have. */
enum {
    NEEDS_SERVERS = 1,   /* parameter servers */
    NEEDS_HOROVOD = 2,   /* a thread that works in cycles */
    NEEDS_NO_GROUPS = 4, /* its ranks communicate nothing but gradients */
    NEEDS_GRADIENTS = 8, /* that are communicated */
    NEEDS_TRANSFERS = 16 /* gradients, or what groups of ranks communicate */
};

enum {
    OF_PASSES = 1,   /* what modules do in their passes: by the graph where groups communicate */
    OF_DURATIONS = 2 /* how long recorded ops take: a replay tells the rest */
};

/* A job that is asked. */
struct job_facts {
    const struct dpro_graph *graph; /* NULL: a generated job */
    const struct dpro_model *model;
    struct arena *arena;
    struct topology *hosts; /* where a question is of a topology: one that is as the job */
};

/* A text that has room for it; it stays as it is where nothing tells. */
struct told_text {
    char *text;
    size_t size;
};
typedef void question_tell_fn(const struct job_facts *facts, struct told_text told);

struct change_row {
    struct dpro_change_kind kind;
    unsigned needs, of;
    /* The same for rows that are applied together, which follow each other; NULL: change_hosts() or
     * change_programs() does it. */
    change_apply_fn *apply;
    /* Asks for something that makes sense in any job that has what it takes; NULL: what that is
     * follows from the field. */
    void (*ask)(struct job_facts *facts, struct dpro_changes *changes);
    question_tell_fn *tell; /* what the job has of it, in a few words; NULL: nothing tells */
    const char *needs_text; /* told of a question that can be asked; NULL */
};
extern const struct change_row change_rows[];
extern const size_t n_change_rows;

bool change_row_is_asked(const struct change_row *row, const struct dpro_changes *changes);
/* Whether all changes that are asked for are of one of these; 0: whether none is asked for. */
bool changes_ask_only(const struct dpro_changes *changes, unsigned of);
/* By what was measured by turns, if nothing is asked for but what a plan can say. */
struct correction changes_correct(const struct dpro_changes *changes,
                                  const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, double doubt);
/* Whether the job has what the row needs. */
void change_check_row(const struct change_row *row, const struct dpro_model *model);
/* Whether it has what all changes need, and they go together. */
void change_check(const struct dpro_changes *changes, const struct dpro_model *model);
/* Applies all changes but those of change_programs() to a copy, which is then to be freed by
 * arena_fini(&model->arena), too; its own strategy is the changed one. `told`: hosts in place of
 * those that the changes name; NULL. */
void change_apply(const struct dpro_graph *graph, const struct topology *told,
                  const struct dpro_changes *changes, struct dpro_model *model,
                  struct notes *notes);

/* ---- questions.c: what can be asked of a job ---- */

/* Asks for what makes sense in a job with other ranks, shards, tensors, hosts, micro-batches. */
void ask_ranks(struct job_facts *facts, struct dpro_changes *changes);
void ask_shards(struct job_facts *facts, struct dpro_changes *changes);
void ask_tensors(struct job_facts *facts, struct dpro_changes *changes);
void ask_hosts(struct job_facts *facts, struct dpro_changes *changes);
void ask_pipeline(struct job_facts *facts, struct dpro_changes *changes);

question_tell_fn tell_ranks, tell_replicas, tell_shards, tell_tensors, tell_hosts, tell_links,
    tell_latency, tell_servers, tell_modules, tell_batch, tell_cycles, tell_buckets,
    tell_compression, tell_units, tell_pipeline;
/* Asks for what the row is of. False: what it would take depends on values alone. */
bool question_ask(const struct change_row *row, struct job_facts *facts,
                  struct dpro_changes *changes);
