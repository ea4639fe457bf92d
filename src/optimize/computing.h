/* The search of how modules are computed: by a compiler, which fuses their ops (paper, section
 * 4.1), and in 16 bits (mixed precision). A probe measured what each way takes. It is decided
 * together with buckets, as a compiled module's gradients are all ready at the end of its backward
 * pass. */
#pragma once

#include <dpro/optimize.h>

#include "cost/program/modules.h"

struct question;

/* What each way to compute a module saves of an iteration's work, mean over the ranks; negative: it
 * takes longer. */
struct module_gain {
    int64_t ns[DPRO_N_COMPUTINGS];
    double std_ns[DPRO_N_COMPUTINGS];
    unsigned ways; /* ways that may be proposed, as 1 << enum dpro_computing: allowed, and their
                      cost is known, or assumed if that was asked for; 0: none */
};
/* [n_modules], in the arena. */
struct module_gain *computing_gains(const struct dpro_model *model,
                                    const struct dpro_optimize_options *options,
                                    struct arena *arena);

/* What the options allow, and of how many modules it is known. */
struct dpro_computing_search computing_known(const struct dpro_model *model,
                                             const struct dpro_optimize_options *options,
                                             const struct module_gain *gains);

struct computing_choice {
    const char *name, *text; /* static */
    bool is_usual;           /* a usual choice, which the result is compared with */
    uint8_t *computing;      /* [n_modules] */
};
enum { MOST_COMPUTING_CHOICES = 9 };
/* Lists different choices: the usual ones, and those that save most of the computation alone, also
 * without compiling the whole model. Returns their number; 0: nothing may be changed. */
uint32_t computing_choices(const struct dpro_model *model, const struct module_gain *gains,
                           struct arena *arena, struct computing_choice *choices);

/* Chooses for each module, or for those within it, the way of these bits that saves most
 * computation. Compiling a module costs delay_ns[module] elsewhere; NULL: nothing. */
void computing_by_gain(const struct dpro_model *model, const struct module_gain *gains,
                       unsigned bits, const double *delay_ns, uint8_t *computing);
/* Marks the tensors that get ready within the module's backward pass in a program, if the last of
 * them does so at its end. Returns whether there are any. */
bool computing_gradients(const struct dpro_model *model, uint32_t program, uint32_t module,
                         bool *gradient_of);

/* Appends candidates that change one bit of enum dpro_computing: for a module, for all modules
 * alike, or for those within a module instead of it; for a compiled module also with the buckets of
 * its gradients merged (Theorem 3). */
void computing_propose(const struct question *question, unsigned bit);

/* Whether any module is computed in another way than as it is. */
bool computing_is_changed(const struct dpro_model *model, const struct dpro_strategy *strategy);
/* False if a compiled module is also recomputed, or lies around or within a recomputed one, as no
 * job can be given that. */
bool computing_is_possible(const struct dpro_model *model, const struct dpro_strategy *strategy);
