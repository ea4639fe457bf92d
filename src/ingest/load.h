/* The steps between the files and the trace, in their order. */
#pragma once

#include "base/processes.h"
#include "ingest/sources.h"

/* Calls a hook of all formats, each function once, in the rows' order. */
#define CALL_ALL(table, hook, ...)                                                                 \
    for (size_t i_ = 0; i_ < (table)->n; i_++) {                                                   \
        bool called_ = !(table)->at[i_]->hook;                                                     \
        for (size_t k_ = 0; k_ < i_ && !called_; k_++)                                             \
            called_ = (table)->at[k_]->hook == (table)->at[i_]->hook;                              \
        if (!called_)                                                                              \
            (table)->at[i_]->hook(__VA_ARGS__);                                                    \
    }

/* load.c: dpro_trace_load with another table of formats. */
int trace_load(const struct reader_table *table, const char *const *paths, size_t n_paths,
               const struct dpro_job_options *options, struct dpro_trace **trace,
               struct dpro_error *err);

/* In place of trace_load() in another process: the ranks that it is to build, in *trace. 1: the
 * first process wants nothing of it. */
int trace_load_share(const char *const *paths, size_t n_paths,
                     const struct dpro_job_options *options, struct dpro_trace **trace);

/* find_files.c */
int sources_find(struct source_list *list, const char *const *paths, size_t n_paths,
                 struct dpro_error *err);

/* read_files.c: recognises and reads all files. Those that hold several processes become as many
 * sources. */
void sources_read(struct trace_build *build);
/* Only those that the process is to read; PROCESS_NONE: that nobody has, and copies. */
void sources_read_of(struct trace_build *build, int process);

/* check_files.c: what reading said about each file; decides which go on. */
void sources_check(struct trace_build *build);
/* Whether there is anything to work with, and all is of one job. */
void sources_check_any(const struct trace_build *build, const char *first_path);
void sources_check_one_job(const struct trace_build *build);
/* Says what all logs together lack. */
void sources_warn_cut(struct trace_build *build);

/* find_ranks.c: sets each usable source's rank. */
int sources_find_ranks(struct trace_build *build, struct dpro_error *err);

/* choose_files.c: of a file and its compressed copy beside it one is taken; of a file and its
 * export the file; of several attempts of a job the newest that has all ranks. */
void sources_drop_copies(struct trace_build *build);
void sources_drop_exports(struct trace_build *build);
void sources_choose_attempt(struct trace_build *build);

/* build_ranks.c: the trace's ranks from the sources. */
int ranks_build(struct trace_build *build, struct dpro_error *err);

/* paths.c: the rank in a file's name or its folder's, -1 when there is none. */
int path_rank(const char *path);
int path_rank_said(const char *path); /* a number that nothing calls a rank is none */
/* The number behind `word` where that is all of the name, else -1. */
int path_numbered(const char *name, const char *word);
/* The number that its folder's name is, -1 when it is not a number: BytePS's <local
 * rank>/comm.json. */
int path_folder_number(const char *path);
/* The process that is no rank by its file's name or its folder's, -1 when it has no role. */
int path_process(const char *path);
const char *path_name(const char *path); /* without its folders */

/* 91204 -> "91,204", in room that lasts as long as the block. */
#define COUNT_TEXT(n) count_write((char[32]){0}, (n))
const char *count_write(char out[32], uint64_t n);

/* ---- share_files.c: a trace that several processes read ----
 *
 * A process reads a file, and all files of one rank are read by one process; what tells of files
 * and ranks as a whole comes together in the first process, which goes on as if it had read them
 * all. Spans stay where they were read.
 *
 * A file of which others than its rank make use is read by the first process, too, and travels
 * whole where that one doesn't see it. Where a file is of another format that is looked at across
 * ranks, the first process reads all itself. */

struct rank_job;

/* Of the first process, in this order: */
/* The files that any process found, each with the process that reads it. rc: of finding its own. */
int shared_find(struct trace_build *build, int rc, struct dpro_error *err);
/* What others read, but for their spans; false: the first process goes on alone. */
bool shared_hear_files(struct trace_build *build);
/* Tells them which files count, and what their strings are called. */
void shared_answer_files(struct trace_build *build);

/* Tells them what logs say of their ranks. */
void shared_answer_ranks(struct trace_build *build);

/* Of another one, in this order; false: the first process wants nothing more. rc: of finding. */
bool shared_tell_found(struct trace_build *build, int rc);
bool shared_tell_files(struct trace_build *build);

/* Of all: what is to be known of the ranks of others, once all are built. 1: the first process
 * wants nothing more. */
int shared_join_ranks(struct trace_build *build, struct rank_job *jobs, size_t n_jobs);
