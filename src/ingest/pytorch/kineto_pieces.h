/* One large profile, read by several threads. */
#pragma once

#include "ingest/pytorch/kineto_events.h"

/* How a thread reads events, with what it has learnt from those before. */
struct piece_reader {
    void *(*create)(struct json *js);
    /* Takes events up to the end of the text; false: it does not end between two events. */
    bool (*read)(void *reader, struct trace_part *part, struct kineto_events *to);
    void (*destroy)(void *reader);
};

/* Takes the array's events, the first of which is next in js, but for the last ones: these are left
 * in js. Whatever is read is the same as by one thread. False: the text can't be read in pieces;
 * it has to be read again from its start. */
bool kineto_read_pieces(const struct piece_reader *reader, struct json *js,
                        struct kineto_events *to);
