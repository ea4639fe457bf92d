/* Jobs for tests and benchmarks: the models of the paper's experiments by their layers, and small
 * random ones. */
#pragma once

#include "cost/program/model.h"

/* "resnet50", "vgg16", "inceptionv3" or "bert-base", on n_ranks GPUs that reduce in a ring over 100
 * Gbit/s; computation takes what it took on the paper's, split by the layers' multiplications, and
 * differs a little from rank to rank. NULL: no such model, or out of memory. */
struct dpro_model *generate_job(const char *name, uint32_t n_ranks);

/* Gives it the modules that the names of its tensors tell, two levels within the model, whose
 * backward passes take 0.6 to 1.2 times as long in other ways. */
void generate_modules(struct dpro_model *model);

/* Gives each rank a program of its own, as recorded ranks have: ops take up to a share longer, by
 * chance. -1: out of memory. */
int generate_apart(struct dpro_model *model, double share);

/* A job of n_tensors that any seed makes another one of: ready times close together or far apart
 * against their transfers, sizes over a factor of a thousand. All times are whole numbers. */
struct generate_options {
    uint64_t seed;
    uint32_t n_tensors, n_ranks;
    bool alike;         /* the ranks */
    bool any_order;     /* of buckets; else in that of the gradients */
    uint32_t n_streams; /* 0: one */
    bool overheads;     /* of launches and copying back */
    bool interferes;    /* transfers slow computation down */
    bool cycles;        /* the next iteration waits for one tensor after the other, not for all */
};
struct dpro_model *generate_random(const struct generate_options *options);
