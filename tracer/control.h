/* What a program, or dpro's Python package in it, asks of the preloaded tracer. It is found with
 * dlsym; without the tracer there is nothing to find. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Records into `path` until dpro_tracer_stop. `rank` goes into the log's header, -1: unknown.
 * Bounds come from the environment. Returns 0 or -errno: -EPERM when DPRO is not 1 or DPRO_NET is
 * off, -EALREADY when recording (DPRO_NET=all included). */
int dpro_tracer_start(const char *path, int rank);
/* Does nothing when dpro_tracer_start did not begin a recording. */
void dpro_tracer_stop(void);
void dpro_tracer_mark(const char *name);
/* Records made, records lost, bytes of the log's files, bytes of memory in use. Returns 0. */
int dpro_tracer_stats(uint64_t out[4]);
/* A thread that calls sched_yield() over and over from `function`, of so many bytes, sleeps for a
 * millisecond each time from now on: it is there for the recording, and would keep a core of the
 * job's busy. Of one function, the last that was named; size 0: none. */
void dpro_tracer_ease(const void *function, size_t size);

/* What TensorFlow's recorder is given from now on is kept here in its place: tracer/traceme.h. One
 * recording at a time, started and stopped by one thread. Returns 0 or -errno. */
int dpro_traceme_start(void);
/* Ends that, and writes the events as an XPlane into `path`; NULL: nowhere. Returns how many, or
 * -errno, and no file is left then. */
int64_t dpro_traceme_stop(const char *path);
/* Events kept, lost for lack of room, and left to TensorFlow's recorder as they look otherwise. */
void dpro_traceme_stats(uint64_t out[3]);
