/* The execution-trace reader: both ways of writing a node, and tensors wherever they stand. */

#include "case.h"
#include "ingest/pytorch/kineto.h"
#include "ingest/readers.h"
#include "part_text.h"

static const struct execution_trace *et_of(const struct trace_part *part)
{
    return part_payload(part, &et_payload);
}

static struct trace_part read_chunked(const char *text, size_t chunk)
{
    return part_of_text(&et_reader, text, chunk);
}

static const char flat[] =
    "{'schema':'1.0.1','pid':59811,'nodes':["
    "{'name':'aten::cat','id':208,'rf_id':173,'parent':207,'seq_"
    "id':440,'tid':1,'op_schema':'x','inputs':[[[9,202,0,1,8,'cpu'],[11,16,4,416,4,'cuda:0']],0,[1,"
    "2,3,4,5]],'input_shapes':[[[1],[416]],[]],'outputs':[[22,209,0,417,8,'cpu']]},"
    "{'name':'record_param_comms','id':606,'rf_id':447,'parent':605,'seq_id':-1,'tid':2,'inputs':["
    "141,0,0,'wait',[],[]],'outputs':[]}]}";

static const char chakra[] =
    "{'schema': '1.1.1-chakra.0.0.4', 'pid': 7000, 'nodes': [{'id': 436, 'name': "
    "'record_param_comms', 'ctrl_deps': 435, 'inputs': {'values': "
    "[[[433,434,0,53120,4,'cuda:0']],33,['0','default_pg'],0,'broadcast',[],[],0,1,1], 'shapes': "
    "[[[53120]]], 'types': ['GenericList[Tensor(float)]']}, 'outputs': {'values': "
    "[[[433,434,0,53120,4,'cuda:0']]], 'shapes': [], 'types': []}, 'attrs': [{'name': 'rf_id', "
    "'type': 'uint64', 'value': 114}, {'name': 'seq_id', 'type': 'int64', 'value': 5},{'name': "
    "'tid', 'type': 'uint64', 'value': 3}, {'name': 'op_schema', 'type': 'string', 'value': "
    "''}]}], 'finish_ts': 3}";

TEST(flat_nodes_are_read)
{
    struct trace_part part = read_chunked(flat, 0);
    assert_int_equal(last_fail, JSON_OK);
    assert_int_equal(part.process.pid, 59811);
    assert_int_equal(et_of(&part)->nodes.n, 2);
    const struct et_node *node = &et_of(&part)->nodes.at[0];
    assert_int_equal(node->id, 208);
    assert_int_equal(node->parent, 207);
    assert_int_equal(node->record_fn, 173);
    assert_int_equal(node->n_inputs, 2);
    assert_int_equal(node->n_outputs, 1);
    assert_int_equal(node->text_inputs, 0);
    const struct et_tensor *tensor = &et_of(&part)->tensors.at[node->first_input + 1];
    assert_int_equal(tensor->storage, 16);
    assert_int_equal(tensor->offset, 4);
    assert_int_equal(tensor->numel, 416);
    assert_int_equal(tensor->item_bytes, 4);
    assert_string_equal(strtab_get(&part.names, tensor->device), "cuda:0");
    node = &et_of(&part)->nodes.at[1];
    assert_int_equal(node->n_inputs, 0);
    assert_string_equal(strtab_get(&part.names, node->text_inputs), "[141,0,0,\"wait\",[],[]]");
    assert_int_equal(et_of(&part)->nodes.at[1].thread, 2);
}

TEST(chakra_nodes_are_read)
{
    for (size_t chunk = 0; chunk < 70; chunk++) {
        struct trace_part part = read_chunked(chakra, chunk);
        assert_int_equal(last_fail, JSON_OK);
        assert_int_equal(et_of(&part)->nodes.n, 1);
        const struct et_node *node = &et_of(&part)->nodes.at[0];
        assert_int_equal(node->id, 436);
        assert_int_equal(node->parent, 435);
        assert_int_equal(node->record_fn, 114);
        assert_int_equal(node->n_inputs, 1);
        assert_int_equal(node->n_outputs, 1);
        assert_int_equal(et_of(&part)->tensors.at[node->first_input].numel, 53120);
        assert_non_null(strstr(strtab_get(&part.names, node->text_inputs), "\"broadcast\""));
        assert_int_equal(et_of(&part)->nodes.at[0].thread, 3);
    }
}

TEST(what_is_whole_of_a_cut_trace_is_kept)
{
    char text[sizeof flat];
    strcpy(text, flat);
    *strstr(text, "[141") = '\0';
    struct trace_part part = read_chunked(text, 0);
    assert_int_equal(last_fail, JSON_ENDED);
    assert_int_equal(et_of(&part)->nodes.n, 1);
    assert_int_equal(et_of(&part)->tensors.n, 3);
}

TEST(odd_values_are_no_tensors)
{
    struct trace_part part = read_chunked(
        "{'schema':'1','nodes':[{'name':'a','id':'7','inputs':[1,2,3,4,5,'cpu'],'outputs':[[1,2,3,"
        "4,'cpu'],[1,2,3,4,5,6,'cpu'],[1,2,3,4,5,'cpu',1],[1,2,3,4,5,'cpu',[]]"
        ",{'a':[]},null]},5]}",
        0);
    assert_int_equal(et_of(&part)->nodes.n, 1);
    assert_int_equal(et_of(&part)->nodes.at[0].id, 7);
    assert_int_equal(et_of(&part)->tensors.n, 0);
    assert_int_equal(part.losses.n_broken, 1);
}

TEST(convolutions_with_a_kernel_of_one_element_tell_their_batch)
{
    static const struct {
        const char *name, *in, *out;
        uint32_t batch;
    } cases[] = {
        {"aten::mkldnn_convolution", "[24,3,8,8],[4,3,1,1],[4]", "[24,4,8,8]", 24},
        {"aten::mkldnn_convolution", "[24,3,8,8],[4,3,1,1],[4]", "[24,4,4,4]", 0}, /* it strides */
        {"aten::mkldnn_convolution", "[24,3,8,8],[4,3,3,3],[4]", "[24,4,8,8]", 0},
        {"aten::mkldnn_convolution", "[24,3,8],[4,3,1],[]", "[24,4,8]", 24},
        {"aten::convolution_backward", "[6,4,8,8],[6,3,8,8],[4,3,1,1]", "[6,3,8,8]", 6},
        {"aten::convolution_backward", "[6,4,8,8],[6,3,8,8]", "", 0},
        {"aten::mkldnn_convolution", "[[1],2],null,[1,1,1,1,1,1,1,1,1]", "7,[-1]", 0},
        {"aten::mm", "[24,3,8,8],[4,3,1,1],[4]", "[24,4,8,8]", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        snprintf(text, sizeof text,
                 "{'schema':'1','nodes':[{'id':1,'name':'%s','inputs':{'values':[],'shapes':[%s]},'"
                 "outputs':{'values':[],'shapes':[%s]}}]}",
                 cases[i].name, cases[i].in, cases[i].out);
        struct trace_part part = read_chunked(text, 0);
        assert_int_equal(et_of(&part)->nodes.n, 1);
        assert_int_equal(et_of(&part)->nodes.at[0].pointwise_batch, cases[i].batch);
    }
}
