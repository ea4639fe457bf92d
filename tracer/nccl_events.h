/* The events that NCCL has started and not yet stopped.
 *
 * They lie in a fixed table. An event's handle is a number, not an address: its place and how often
 * that place was used, so that a handle stopped twice, kept too long, or made by another process
 * (PXN) is recognised and passed over. It is the event's number in the log too: a child names its
 * parent although the parent has stopped and its place is used again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

/* A new event with what all have in common; NULL: not recorded. Nobody else sees it until
 * event_publish, which returns its handle. */
struct record_nccl_event *event_open(const void *context, uint64_t type, const void *parent,
                                     int rank);
void *event_publish(struct record_nccl_event *event, const void *context);

/* The open event of a handle, so that nobody else changes it until event_unclaim or event_close;
 * NULL when there is none. */
struct record_nccl_event *event_claim(const void *handle);
void event_unclaim(struct record_nccl_event *event);
/* Writes its record; stop_ns is 0 when it was not stopped. */
void event_close(struct record_nccl_event *event, int64_t stop_ns);

/* Events of a communicator, or all, that nobody has stopped. */
void events_close(uint32_t comm, bool all);

size_t events_memory(void); /* bytes used so far */
