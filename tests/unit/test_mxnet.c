/* MXNet's profiles and graphs, and ps-lite's messages in CSVs. */

#include "case.h"
#include "ingest/rank_job.h"
#include "ingest/readers.h"
#include "part_text.h"

/* ---- profiles ---- */

#define HEAD                                                                                       \
    "{'traceEvents':[{'ph':'M','args':{'name':'cpu/0'},'pid':0,'name':'process_"                   \
    "name'}"
#define EVENT(name, cat, ph, ts, tid)                                                              \
    ",{'name':'" name "','cat':'" cat "','ph':'" ph "','ts':" ts ",'pid':0,'tid':" tid "}"

TEST(operations_of_a_thread_may_overlap)
{
    struct trace_part part;
    part = part_of_text(
        &mxnet_reader,
        HEAD EVENT("KVStoreDistDefaultStoragePushPull", "operator", "B", "10", "7")
            EVENT("KVStoreDistDefaultStoragePushPull", "operator", "E", "90", "7")
                EVENT("KVStoreDistDefaultStoragePushPull", "operator", "B", "12", "7")
                    EVENT("KVStoreDistDefaultStoragePushPull", "operator", "E", "95", "7")
                        EVENT("MXNDArrayWaitAll", "MXNET_C_API", "b", "5", "1")
                            EVENT("Convolution", "operator", "b", "6", "2")
                                EVENT("MXNDArrayWaitAll", "MXNET_C_API", "e", "99", "1") "]}",
        0);
    const struct trace_span *spans = part.first_block->at;
    assert_int_equal(part.n_spans, 3);
    assert_int_equal(spans[0].start_ns, 10000);
    assert_int_equal(spans[0].dur_ns, 80000);
    assert_int_equal(spans[1].dur_ns, 83000);
    assert_int_equal(spans[1].kind, SPAN_ANNOTATION);
    assert_int_equal(spans[2].kind, SPAN_CPU_OP);
    assert_int_equal(part.tracks.n, 2);
    assert_int_equal(part.losses.n_unpaired, 0); /* the async twin is none */
}

TEST(an_end_without_a_beginning_is_counted)
{
    struct trace_part part;
    part = part_of_text(&mxnet_reader,
                        HEAD EVENT("Flatten", "operator", "E", "10", "7")
                            EVENT("Pooling", "operator", "B", "11", "7")
                                EVENT("Flatten", "operator", "B", "20", "7")
                                    EVENT("Flatten", "operator", "E", "19", "7") "]}",
                        0);
    assert_int_equal(part.n_spans, 0);
    assert_int_equal(part.losses.n_unpaired, 2);
    assert_int_equal(part.losses.n_broken, 1);
}

/* ---- graphs ---- */

static const char executor[] =
    "Symbol Outputs:\n\toutput[0]=fc(0)\nVariable:data\nVariable:w\n--------------------\n"
    "Op:FullyConnected, Name=fc\nInputs:\n\targ[0]=data(0) version=0\n\targ[1]=w(0) version=0\n"
    "Attrs:\n\tnum_hidden=2\n--------------------\n"
    "Op:_backward_FullyConnected, Name=fc_backward\nInputs:\n\targ[0]=fc(0)\n\targ[1]=nobody(0)\n"
    "Control deps:\n\tcdep[0]=fc\nTotal 5 MB allocated\n";

static const struct dfg_node *node_named(const struct trace_part *part, const char *name)
{
    for (size_t i = 0; i < part->dfg_nodes.n; i++)
        if (strcmp(strtab_get(&part->names, part->dfg_nodes.at[i].name), name) == 0)
            return &part->dfg_nodes.at[i];
    return NULL;
}

static bool takes(const struct trace_part *part, const char *name, const char *from, bool control)
{
    const struct dfg_node *node = node_named(part, name), *other = node_named(part, from);
    for (uint32_t i = 0; node && i < node->n_inputs; i++) {
        const struct dfg_input *input = &part->dfg_inputs.at[node->first_input + i];
        if (&part->dfg_nodes.at[input->node] == other && input->control == control)
            return true;
    }
    return false;
}

TEST(an_executor_has_its_backward_ops)
{
    struct trace_part part;
    part = part_of_text(&mxnet_text_reader, executor, 0);
    assert_int_equal(part.dfg_nodes.n, 4);
    assert_int_equal(part.graph, GRAPH_AS_RUN);
    assert_true(takes(&part, "fc", "w", false));
    assert_true(takes(&part, "fc_backward", "fc", false));
    assert_true(takes(&part, "fc_backward", "fc", true));
    assert_int_equal(part.losses.n_broken_records, 1); /* nobody */
}

TEST(a_symbol_is_mirrored)
{
    struct trace_part part;
    part =
        part_of_text(&mxnet_symbol_reader,
                     "{'nodes':[{'op':'null','name':'data','inputs':[]},"
                     "{'op':'Convolution','name':'c','inputs':[[0,0,0]]},"
                     "{'op':'Flatten','name':'f','inputs':[[1,0,0],[77,0,0]]}],'heads':[[2,0,0]]}",
                     0);
    assert_int_equal(part.graph, GRAPH_MIRRORED);
    assert_int_equal(part.dfg_nodes.n, 5);
    const struct dfg_node *flat = node_named(&part, "f_backward");
    assert_string_equal(strtab_get(&part.names, flat->type), "_backward_copy");
    assert_true(takes(&part, "c_backward", "f_backward", false));
    assert_true(takes(&part, "c_backward", "c", true));
    assert_int_equal(part.losses.n_broken_records, 1);
}

/* ---- which node an op is ---- */

enum { MAX_SPANS = 16 };

/* Matches ops of types, in order, with a chain of nodes of types; -1 where an op is no node. */
static void match(const char *const *nodes, uint32_t n_nodes, const char *const *ops, uint32_t n,
                  int *found)
{
    struct strtab names = {0};
    struct dfg_node dfg[MAX_SPANS];
    struct dfg_input inputs[MAX_SPANS];
    struct trace_span spans[MAX_SPANS];
    strtab_add(&names, "", 0);
    for (uint32_t i = 0; i < n_nodes; i++) {
        dfg[i] = (struct dfg_node){.type = strtab_add(&names, nodes[i], strlen(nodes[i])),
                                   .first_input = i,
                                   .n_inputs = 1};
        inputs[i] = (struct dfg_input){.node = i ? i - 1 : 0};
    }
    for (uint32_t i = 0; i < n; i++)
        spans[i] = (struct trace_span){.start_ns = i,
                                       .name = strtab_add(&names, ops[i], strlen(ops[i])),
                                       .kind = SPAN_CPU_OP,
                                       .node = NO_ID};
    struct trace_rank rank = {.dfg_nodes = dfg,
                              .dfg_inputs = inputs,
                              .spans = spans,
                              .n_dfg_nodes = n_nodes,
                              .n_dfg_inputs = n_nodes,
                              .n_spans = n};
    struct rank_job job = {.rank = &rank, .names = &names};
    mxnet_match_types(&job);
    for (uint32_t i = 0; i < n; i++)
        found[i] = spans[i].node == NO_ID ? -1 : (int)spans[i].node;
    strtab_fini(&names);
}

static const char *const chain[] = {"C", "B", "P", "C", "B", "P"};

TEST(the_kth_op_of_a_type_is_the_kth_node)
{
    const char *ops[] = {"C", "B", "P", "C", "copy", "B", "P", "C", "B"};
    int expected[] = {0, 1, 2, 3, -1, 4, 5, 0, 1}, found[9];
    match(chain, 6, ops, 9, found);
    for (int i = 0; i < 9; i++)
        assert_int_equal(found[i], expected[i]);
}

TEST(what_a_bulk_hid_has_run_when_what_takes_it_runs)
{
    const char *ops[] = {"ImperativeBulk", "B", "P", "C", "[B,P]", "ImperativeBulk", "B"};
    int expected[] = {-1, 1, 2, 3, 5, -1, 1}, found[7];
    match(chain, 6, ops, 7, found);
    for (int i = 0; i < 7; i++)
        assert_int_equal(found[i], expected[i]);
}

/* ---- messages ---- */

#define CSV_HEAD "# op,local>peer,stream_offset,bytes,t0_ns,t1_ns(CLOCK_REALTIME),tid\n"
#define FRAME(op, flags, size, time, hex)                                                          \
    "zmq_msg_" op ",0x7f," flags "," size "," time "," time ",3," hex "\n"
#define PUSH_META "0800200128013000380040a1084a03080b03500060016800"
#define PULL_META "0800200028013000380040a1084a03080b03500060016800"

TEST(frames_passed_to_a_socket_are_messages)
{
    struct trace_part part;
    part = part_of_text(
        &transport_csv_reader,
        CSV_HEAD FRAME("send", "2", "24", "10", PUSH_META)
            FRAME("send", "2", "8", "11", "0e00000000000000") FRAME("send", "2", "300", "12", "")
                FRAME("send", "0", "4", "13", "00010000") FRAME("recv", "0", "3", "20", "707338")
                    FRAME("recv", "0", "24", "20", PULL_META)
                        FRAME("recv", "0", "8", "20", "0e00000000000000")
                            FRAME("recv", "0", "40", "20", ""),
        0);
    const struct net_transport *transport = part_payload(&part, &transport_payload);
    const net_message_array *ps = &transport->messages;
    assert_int_equal(ps->n, 2);
    assert_true(ps_is_push(&ps->at[0]));
    assert_int_equal(ps->at[0].key, 14);
    assert_int_equal(ps->at[0].timestamp, 0x421);
    assert_int_equal(ps->at[0].length, 300);
    assert_int_equal(ps->at[0].size_bytes, 24 + 2 + 8 + 2 + 300 + 9 + 4 + 2);
    assert_true(ps_is_pull(&ps->at[1]) && !ps_is_push(&ps->at[1]));
    assert_true(ps->at[1].received);
    assert_int_equal(ps->at[1].length, 40);
}

/* role 1, id 9 at 10.77.0.2:48213; role 0, id 8 at 10.77.0.1:55011 */
#define NODES                                                                                      \
    "08ffffffff071a3408021217080110091a0931302e37372e302e3220d5f80228005000121708"                 \
    "0010081a0931302e37372e302e3120e3ad0328005000"

TEST(the_list_of_nodes_says_whose_a_log_is)
{
    const struct {
        const char *line;
        const char *process;
    } cases[] = {{"send,10.77.0.2:48213>10.77.0.1:99,0,10,1,2,3\n", "rank 0"},
                 {"send,10.77.0.1:55011>10.77.0.2:98,0,10,1,2,3\n", "server 0"},
                 {"send,10.77.0.1:97>10.77.0.2:48213,0,10,1,2,3\n", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512], name[NET_PROCESS_TEXT];
        struct trace_part part;
        snprintf(text, sizeof text, "%s%s%s", CSV_HEAD, cases[i].line,
                 FRAME("recv", "0", "3", "9", "707331") FRAME("recv", "0", "60", "9", NODES));
        part = part_of_text(&transport_csv_reader, text, 0);
        assert_int_equal(part.process.has_rank, cases[i].process != NULL);
        if (cases[i].process) {
            net_process_format(name, part.process.rank);
            assert_string_equal(name, cases[i].process);
        }
    }
}
