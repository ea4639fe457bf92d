/* ingest/byteps/byteps.h: BytePS's own trace, comm.json, beside a framework's profile. */
#ifndef INGEST_BYTEPS_BYTEPS_H
#define INGEST_BYTEPS_BYTEPS_H

struct dpro_error;
struct loader;

/* comm_json.c: adds the pushes and pulls of comm.json to the workers' profiles, where no transport
 * log has them; before the ranks are built. */
int byteps_join(struct loader *loader, struct dpro_error *err);

#endif
