/* probes.json: what is read of it, of the trace's own run and of another one. */

#include "case.h"
#include "ingest/probes.h"
#include "ingest/readers.h"
#include "part_text.h"
#include "temp_folder.h"

#define HEAD                                                                                       \
    "{'schema':'dpro.probes/1','device':'cpu','device_name':'EPYC','versions':"                    \
    "{'torch':'2.13.0'},'threads':2,'fault_ns':1600,'probes':["
#define BLOCK                                                                                      \
    "{'class':'Block','modules':[['blocks.0'],['blocks.1']],'ways':{"                              \
    "'compile':{'forward_ns':[80,88,800],'backward_ns':[240,220,260],'kept_bytes':50,"             \
    "'compile_ms':8120.5,'graphs':1,'breaks':2},"                                                  \
    "'eager':{'forward_ns':[100,110,1000],'backward_ns':[200,200,200],'kept_bytes':100},"          \
    "'bf16':{'problem':'no such type'}},"                                                          \
    "'batches':{'0.5':{'forward_ns':[40,44,400],'backward_ns':[90,90,90]},"                        \
    "'x':{'forward_ns':[1]}}}"

static const struct dpro_probes *probes_of(const struct trace_part *part)
{
    return part_payload(part, &probes_payload);
}

static void assert_near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-9)
        fail_msg("%.12g is not %.12g", value, wanted);
}

TEST(ways_are_told_against_the_module_as_it_is)
{
    for (size_t chunk = 0; chunk < 80; chunk++) {
        struct trace_part part = part_of_text(&probes_reader, HEAD BLOCK "]}", chunk);
        const struct dpro_probes *of = probes_of(&part);
        assert_int_equal(of->probes.n, 1);
        const struct probe *probe = &of->probes.at[0];
        assert_string_equal(strtab_get(&of->strings, probe->class), "Block");
        assert_string_equal(strtab_get(&of->strings, of->device_name), "EPYC");
        assert_string_equal(strtab_get(&of->strings, of->torch), "2.13.0");
        assert_int_equal(of->threads, 2);
        assert_near(of->fault_ns, 1600);
        assert_int_equal(probe->n, 2);
        assert_string_equal(strtab_get(&of->strings, of->names.at[probe->first + 1]), "blocks.1");
        const struct probe_cost *compiled = &probe->costs[DPRO_COMPILED];
        assert_true(compiled->is_known);
        assert_near(compiled->forward.value, 0.8); /* in the same moment, however slow that was */
        assert_near(compiled->forward.std, 1.2533 * 0.05 * 0.8 / sqrt(3)); /* few may be alike */
        assert_near(compiled->backward.value, 1.2);
        assert_true(compiled->backward.std > 0.05 && compiled->backward.std < 0.2);
        assert_int_equal(compiled->kept_bytes, 50);
        assert_int_equal(compiled->n_graphs, 1);
        assert_false(probe->costs[DPRO_BF16].is_known);
        assert_string_equal(strtab_get(&of->strings, probe->costs[DPRO_BF16].problem),
                            "no such type");
        assert_false(probe->costs[DPRO_COMPILED | DPRO_BF16].is_known);
        assert_int_equal(probe->n_batches, 1);
        assert_near(of->batches.at[0].ratio, 0.5);
        assert_near(of->batches.at[0].cost.forward.value, 0.4);
        assert_near(of->batches.at[0].cost.backward.value, 0.45);
    }
}

TEST(a_way_with_times_of_its_own_is_told_against_these)
{
    struct trace_part part = part_of_text(
        &probes_reader,
        HEAD "{'modules':[['a']],'ways':{'eager':{'forward_ns':[10],'backward_ns':[10]},'bf16':{'"
             "forward_ns':[5],'backward_ns':[5]},'compile':{'forward_ns':[12],'backward_ns':[10],'"
             "eager':{'forward_ns':[8],'backward_ns':[20]}}}}]}",
        0);
    const struct probe *probe = &probes_of(&part)->probes.at[0];
    assert_near(probe->costs[DPRO_BF16].forward.value, 0.5);
    assert_near(probe->costs[DPRO_COMPILED].forward.value, 1.5);
    assert_near(probe->costs[DPRO_COMPILED].backward.value, 0.5);
}

TEST(launches_and_kernels_of_a_gpu_are_told_apart)
{
    struct trace_part part = part_of_text(
        &probes_reader,
        HEAD "{'modules':[['a']],'ways':{'eager':{'forward_ns':[100],'forward_launch_ns':[95],'"
             "forward_device_ns':[40],'backward_ns':[100]},'bf16':{'forward_ns':[120],'forward_"
             "launch_ns':[114],'forward_device_ns':[130],'backward_ns':[100]}}}]}",
        0);
    const struct probe_cost *cost = &probes_of(&part)->probes.at[0].costs[DPRO_BF16];
    assert_near(cost->forward.value, 1.2);
    assert_near(cost->forward_bounds.launch, 1.2);
    assert_near(cost->forward_bounds.device, 3); /* 120 of 40: no longer than all of it */
    assert_near(cost->forward_bounds.own_launch_ns, 95);
    assert_near(cost->backward_bounds.launch, 0); /* not known */
}

TEST(a_file_cut_anywhere_keeps_whole_probes)
{
    static const char whole[] = HEAD BLOCK "," BLOCK "]}";
    for (size_t cut = 1; cut < sizeof whole - 1; cut++) {
        char text[sizeof whole];
        memcpy(text, whole, cut);
        text[cut] = '\0';
        struct trace_part part = part_of_text(&probes_reader, text, 0);
        const struct dpro_probes *of = probes_of(&part);
        assert_int_not_equal(last_fail, JSON_OK);
        for (size_t i = 0; i < of->probes.n; i++)
            assert_true(of->probes.at[i].costs[DPRO_COMPILED].is_known);
        assert_int_equal(of->names.n, 2 * of->probes.n);
    }
}

TEST(what_makes_no_sense_is_left_out)
{
    struct trace_part part = part_of_text(
        &probes_reader,
        HEAD "{'modules':[['a','b'],['c'],3,[]],'ways':{'eager':{'forward_ns':[-1,1e15,'x']},'"
             "compile':{'forward_ns':[5]},'other':[1]}},7,{'modules':[]}]}",
        0);
    const struct dpro_probes *of = probes_of(&part);
    assert_int_equal(of->probes.n, 1);
    assert_int_equal(of->probes.at[0].n, 1);
    assert_false(of->probes.at[0].costs[DPRO_COMPILED].is_known);
    assert_int_equal(of->n_broken, 7);
}

static struct dpro_error err;

static int read_text(const char *text)
{
    struct dpro_probes *probes = NULL;
    write_text("probes.json", text);
    int rc = dpro_probes_read(in_folder("probes.json"), NULL, &probes, &err);
    assert_int_equal(rc == 0, probes != NULL);
    dpro_probes_destroy(probes);
    return rc;
}

TEST_IN_FOLDER(a_file_that_holds_no_probes_is_refused)
{
    struct dpro_probes *probes;
    assert_int_equal(read_text(HEAD BLOCK "]}"), 0);
    assert_int_equal(read_text(HEAD "]}"), DPRO_EFORMAT);
    assert_non_null(strstr(err.text, "no module was probed"));
    assert_int_equal(read_text("{'schema':'dpro.probes/2','probes':[]}"), DPRO_EFORMAT);
    assert_non_null(strstr(err.text, "dpro.probes/1"));
    assert_int_equal(read_text("[1]"), DPRO_EFORMAT);
    assert_int_equal(read_text(HEAD), DPRO_EFORMAT);
    assert_int_equal(dpro_probes_read(in_folder("none.json"), NULL, &probes, &err), DPRO_EFORMAT);
}
