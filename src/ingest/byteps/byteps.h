/* ingest/byteps/byteps.h: BytePS's own trace, comm.json, beside a framework's profile. */
#ifndef INGEST_BYTEPS_BYTEPS_H
#define INGEST_BYTEPS_BYTEPS_H

struct dpro_error;
struct trace_build;

/* comm_json.c: adds the pushes and pulls of comm.json to the workers' profiles, where no transport
 * log has them; before the ranks are built. */
int byteps_join(struct trace_build *build, struct dpro_error *err);

#endif
