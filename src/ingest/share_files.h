/* A trace that several processes read. A process reads a file, and all files of one rank are read
 * by one process; what tells of files and ranks as a whole comes together in the first process,
 * which goes on as if it had read them all. Spans stay where they were read.
 *
 * A file of which others than its rank make use is read by the first process, too, and travels
 * whole where that one doesn't see it. Where a file is of another format that is looked at across
 * ranks, the first process reads all itself. */
#pragma once

#include "base/processes.h"
#include "ingest/sources.h"

struct rank_job;

/* Of each: which of the files that it found will be its own if all find the same, so that it can
 * read them while MPI begins. rc: of finding them. */
void shared_guess(struct trace_build *build, int rc);

/* Of the first process, in this order: */
/* The files that any process found, each with the process that reads it. rc: of finding its own. */
int shared_find(struct trace_build *build, int rc, struct dpro_error *err);
/* What others read, but for their spans; false: the first process goes on alone. */
bool shared_hear_files(struct trace_build *build);
/* Tells them which files count, and what their strings are called. */
void shared_answer_files(struct trace_build *build);

/* Tells them what logs say of their ranks. */
void shared_answer_ranks(struct trace_build *build);

/* Of another one, in this order; false: the first process wants nothing more. */
bool shared_tell_found(struct trace_build *build);
bool shared_tell_files(struct trace_build *build);

/* Of all: what is to be known of the ranks of others, once all are built. 1: the first process
 * wants nothing more. */
int shared_join_ranks(struct trace_build *build, struct rank_job *jobs, size_t n_jobs);
