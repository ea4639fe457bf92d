/* Which parameter server a tensor goes to. */
#pragma once

#include "cost/program/model.h"
#include "plan/plan.h"

/* MXNet's number of the server that a key's whole array goes to. */
uint32_t servers_number_of_key(uint32_t key, uint32_t n_servers);
uint32_t servers_of_part(const struct dpro_model *model, const struct dpro_strategy *strategy,
                         uint32_t bucket, uint32_t part);
/* MXNet's rule: arrays of so many elements or more are split. */
enum { SERVERS_DEFAULT_BOUND = 1000000 };
void servers_set_bound(const struct dpro_model *model, uint64_t bound,
                       struct dpro_strategy *strategy);
enum { SERVERS_MOST = PLAN_MOST_SERVERS }; /* that can be predicted */
/* Changes the number of servers. The first ones keep their places; if servers are on ranks' hosts,
 * further ones go to ranks without one. The model's own strategy is placed as the job's stack
 * would. */
void servers_change(struct dpro_model *model, uint32_t n_servers, struct arena *arena);

uint32_t servers_host_of(const struct model_net *net, uint32_t rank);
/* The nodes (sync.h) at the ends of a push or a pull; equal: it takes no link. */
struct server_route {
    uint32_t from, to;
};
struct server_route servers_route(const struct model_net *net, uint32_t rank, uint32_t server,
                                  bool pulls);
/* How many times as long as on a rank's link a byte takes on the node's. */
double servers_slowness(const struct model_net *net, uint32_t node);
static inline double servers_part_bytes(uint64_t bucket_bytes, uint32_t part, uint32_t n)
{
    return (double)(bucket_bytes * (part + 1) / n - bucket_bytes * part / n);
}
/* The server with that number in the job; MODEL_NONE: there is none. */
uint32_t servers_with_number(const struct dpro_model *model, int number);
/* A server's number in the job: task 1 of its servers may be the first that the trace shows. */
int servers_number(const struct dpro_model *model, uint32_t server);
