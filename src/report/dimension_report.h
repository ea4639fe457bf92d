/* How the job is parallel. */
#pragma once

#include "report/facts.h"
#include "report/words.h"

/* The name of a device, and of the dimension that all communication on it is in: "GPU 0 stream 20,
 * tp". `of_devices`: dimensions_of_devices(). */
const char *dimensions_name_device(const struct dpro_graph *graph, dpro_device_id device,
                                   const uint32_t *of_devices, char *text, size_t size);
/* By device: its dimension; DPRO_NO_DIMENSION: none, or several. In `arena`. */
const uint32_t *dimensions_of_devices(const struct dpro_graph *graph, struct arena *arena);
void dimensions_write_text(struct writer *writer, const struct report_facts *facts);
/* The members "dimensions" and "dimensions_note". */
void dimensions_write_json(struct writer *writer, const struct report_facts *facts);
