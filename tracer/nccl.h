/* What libnccl-profiler-dpro.so exports beside NCCL's tables: the recorder's windows. */
#pragma once

#include <stdint.h>

/* Records to `path` from now on; DPRO_NET_MAX_MB, DPRO_NET_KEEP and DPRO_NCCL_EVENTS count. 0, or
 * -errno: -EALREADY when recording (DPRO_NET=all included). */
int dpro_nccl_start(const char *path, int rank);
/* Does nothing when dpro_nccl_start did not begin a recording. */
void dpro_nccl_stop(void);
void dpro_nccl_mark(const char *name);
/* Records, records lost, bytes of the file, bytes of memory. 0. */
int dpro_nccl_stats(uint64_t out[4]);
