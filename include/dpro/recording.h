/* Trace directories as `dpro profile` and `dpro attach` leave them: making a place for one, and
 * reading what one holds without its traces. doc/formats/trace-directory.md has the layout. */
#ifndef DPRO_RECORDING_H
#define DPRO_RECORDING_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_recording;

enum dpro_recording_part { /* bits: the files a rank has */
                           DPRO_RECORDING_TIMING = 1,
                           DPRO_RECORDING_STRUCTURE = 2,
                           DPRO_RECORDING_TRANSPORT = 4,
                           DPRO_RECORDING_NCCL = 8,
                           /* timing of all ranks: one client drives them (TensorFlow 1) */
                           DPRO_RECORDING_ALL_RANKS = 16,
};

struct dpro_recording_rank { /* texts are borrowed from the recording */
    const char *folder;      /* below the trace directory: "host0/rank3" */
    int rank, world_size;    /* world_size 0: unknown */
    int attempt;             /* how often the job had been started again before */
    int complete;            /* 0: ended, or is still running, before the last window was full */
    int n_steps;             /* in the timing window; -1: as many as the rank that drives it */
    unsigned parts;          /* of enum dpro_recording_part */
    const char *problem;     /* why its rank.json could not be read to the end; NULL: it was */
    size_t n_warnings;       /* of the recorder */
};

/* Makes `path` and the folders above it where they are missing, and checks that it can be written
 * to. Fails with DPRO_EUSAGE when it holds a recording already, unless `replace`: then that
 * recording, and nothing else in the folder, is removed. What a job left that ended before it
 * recorded anything is always removed. A folder in which other nodes of the job have begun to
 * record is fine. DPRO_EIO when the folder can't be used. */
DPRO_API int dpro_recording_prepare(const char *path, int replace, struct dpro_error *err);

/* Reads what `path` holds; a folder without ranks is no error. On success *recording is the
 * caller's. */
DPRO_API int dpro_recording_read(const char *path, struct dpro_recording **recording,
                                 struct dpro_error *err);
DPRO_API void dpro_recording_destroy(struct dpro_recording *recording); /* NULL is fine */

/* By attempt, then rank. */
DPRO_API size_t dpro_recording_n_ranks(const struct dpro_recording *recording);
DPRO_API struct dpro_recording_rank dpro_recording_rank(const struct dpro_recording *recording,
                                                        size_t index);

/* Transport logs of processes, as DPRO_NET=all makes them, beside the ranks' folders. */
DPRO_API size_t dpro_recording_n_logs(const struct dpro_recording *recording);

#ifdef __cplusplus
}
#endif
#endif
