/* What can be asked of a job. */
#pragma once

#include "cost/change/changes.h"

/* Asks for what makes sense in a job with other ranks, shards, tensors, hosts, micro-batches. */
void ask_ranks(struct job_facts *facts, struct dpro_changes *changes);
void ask_shards(struct job_facts *facts, struct dpro_changes *changes);
void ask_tensors(struct job_facts *facts, struct dpro_changes *changes);
void ask_hosts(struct job_facts *facts, struct dpro_changes *changes);
void ask_pipeline(struct job_facts *facts, struct dpro_changes *changes);

/* What the job has of it, in a few words; "" where nothing tells. */
void question_tell(const struct change_row *row, const struct job_facts *facts, char *text,
                   size_t size);
/* Asks for what the row is of. False: what it would take depends on values alone. */
bool question_ask(const struct change_row *row, struct job_facts *facts,
                  struct dpro_changes *changes);
