/* optimize/computing.h: the search of how modules are computed: by a compiler, which fuses their
 * ops (paper, section 4.1), and in 16 bits (mixed precision). A probe measured what each way takes.
 * It is decided together with buckets, as a compiled module's gradients are all ready at the end of
 * its backward pass. */
#pragma once

#include <dpro/optimize.h>

#include "base/arena.h"
#include "cost/model.h"

struct question;

/* What each way to compute a module by itself wins of an iteration's work, mean over the ranks;
 * negative: it takes longer. */
struct module_gain {
    int64_t ns[DPRO_N_COMPUTINGS];
    double std_ns[DPRO_N_COMPUTINGS];
    unsigned ways; /* that may be proposed, as 1 << enum dpro_computing: what they cost is known, or
                      assumed where the user insists, and he allowed them; 0: none */
};
/* [n_modules], in the arena. */
struct module_gain *computing_gains(const struct dpro_model *model,
                                    const struct dpro_optimize_options *options,
                                    struct arena *arena);

/* What the options allow, and how much is known of it. */
struct dpro_computing_search computing_known(const struct dpro_model *model,
                                             const struct dpro_optimize_options *options,
                                             const struct module_gain *gains);

/* A choice for all modules. */
struct computing_choice {
    const char *name, *text; /* static */
    bool is_usual;           /* what people do: the result is compared with it */
    uint8_t *computing;      /* [n_modules] */
};
enum { MOST_COMPUTING_CHOICES = 9 };
/* All that differ of what people do, and of what wins most of the computation alone, also without
 * compiling the whole model; returns how many; 0: nothing may be changed. */
uint32_t computing_choices(const struct dpro_model *model, const struct module_gain *gains,
                           struct arena *arena, struct computing_choice *choices);

/* Computes each module so that most of the computation is won, or what lies within it: in ways of
 * these bits. Where it is compiled, delay_ns[module] is lost elsewhere; NULL: nothing is. */
void computing_by_gain(const struct dpro_model *model, const struct module_gain *gains,
                       unsigned bits, const double *delay_ns, uint8_t *computing);
/* Marks the tensors that are ready within the module's backward pass in a program, of which it
 * makes the last one ready at its end; whether there are any. */
bool computing_gradients(const struct dpro_model *model, uint32_t program, uint32_t module,
                         bool *gradient_of);

/* Appends candidates that differ in one bit of enum dpro_computing: of a module, of all modules
 * alike, of those within a module instead of it; also with the buckets of a module's gradients as
 * one (Theorem 3), where it is compiled. */
void computing_propose(const struct question *question, unsigned bit);

/* Whether any module is computed otherwise than it is. */
bool computing_is_changed(const struct dpro_model *model, const struct dpro_strategy *strategy);
/* A module's way, where none that it lies in has one; else 0. */
unsigned computing_way(const struct dpro_model *model, const struct dpro_strategy *strategy,
                       uint32_t module);
/* False: a module is compiled that is recomputed, too, or part of one or has parts that are, which
 * no job can be given; or passes fuse ops, too, whose times are not known then. */
bool computing_is_possible(const struct dpro_model *model, const struct dpro_strategy *strategy);
