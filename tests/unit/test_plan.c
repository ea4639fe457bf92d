/* What a plan says of modules and of Horovod's settings is written, read and checked. */

#include <dpro/verify.h>

#include "case.h"
#include "plan/plan.h"
#include "temp_folder.h"

static uint32_t intern(struct plan_file *plan, const char *text)
{
    return strtab_add(&plan->strings, text, strlen(text));
}

static void add_names(struct plan_file *plan, name_array *to, const char *const *names)
{
    for (; *names; names++)
        array_push(to, intern(plan, *names));
}

static struct plan_file some_plan(void)
{
    struct plan_file plan = {.world_size = 2, .baseline_ns = 9000000, .iteration_ns = 8000000};
    intern(&plan, "");
    plan.framework = intern(&plan, "pytorch");
    plan.stack = intern(&plan, "ddp");
    plan.device = intern(&plan, "cpu");
    struct plan_file_parameter parameter = {intern(&plan, "a"), 0, 4};
    struct plan_file_bucket bucket = {
        .n = 1, .size_bytes = 4, .partitions = 1, .priority = 0, .server = -1};
    array_push(&plan.models, intern(&plan, "GPT"));
    array_push(&plan.parameters, parameter);
    array_push(&plan.buckets, bucket);
    array_push(&plan.members, 0);
    return plan;
}

static void write_plan(const struct plan_file *plan)
{
    FILE *file = fopen(in_folder("plan.json"), "w");
    assert_non_null(file);
    assert_int_equal(writer_write_file(file, plan_file_write, plan, NULL), 0);
    fclose(file);
}

static void check_names(const struct plan_file *plan, const name_array *found,
                        const char *const *expected)
{
    for (size_t i = 0; i < found->n; i++)
        assert_string_equal(strtab_get(&plan->strings, found->at[i]), expected[i]);
    assert_null(expected[found->n]);
}

TEST_IN_FOLDER(modules_that_are_compiled_and_in_16_bits_come_back_as_they_were_written)
{
    static const struct {
        const char *compile[4], *bf16[4], *recompute[4];
        int version;
    } cases[] = {
        {{NULL}, {NULL}, {NULL}, 1},
        {{NULL}, {NULL}, {"blocks.1"}, 3},
        {{"blocks.0", "blocks.1"}, {NULL}, {NULL}, 4},
        {{NULL}, {""}, {NULL}, 4},
        {{"blocks.0", "head"}, {"blocks.0", "stem '1'"}, {"blocks.1"}, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char schema[32];
        struct plan_file plan = some_plan(), back;
        struct dpro_plan_summary summary;
        struct dpro_error err;
        add_names(&plan, &plan.compiled, cases[i].compile);
        add_names(&plan, &plan.in_bf16, cases[i].bf16);
        add_names(&plan, &plan.recomputed, cases[i].recompute);
        write_plan(&plan);
        if (OUTCOME(&err, plan_file_read(folder, &back)) < 0 ||
            dpro_plan_read(folder, &summary, &err) < 0)
            fail_msg("%s", err.text);
        check_names(&back, &back.compiled, cases[i].compile);
        check_names(&back, &back.in_bf16, cases[i].bf16);
        check_names(&back, &back.recomputed, cases[i].recompute);
        assert_int_equal(summary.n_compiled, plan.compiled.n);
        assert_int_equal(summary.n_bf16, plan.in_bf16.n);
        assert_string_equal(summary.device, "cpu");
        char text[64] = "";
        FILE *file = fopen(in_folder("plan.json"), "r");
        assert_non_null(fgets(text, sizeof text, file));
        fclose(file);
        snprintf(schema, sizeof schema, "\"dpro.plan/%d\"", cases[i].version);
        assert_non_null(strstr(text, schema));
        plan_file_fini(&plan);
        plan_file_fini(&back);
    }
}

#define JOB                                                                                        \
    "{'schema':'dpro.plan/5','job':{'framework':'pytorch','world_size':2,'models':["               \
    "]},"

TEST_IN_FOLDER(units_come_back_as_they_were_written)
{
    static const char *const names[] = {"", "blocks.0", "blocks.1"};
    struct plan_file plan = some_plan(), back;
    struct dpro_plan_summary summary;
    struct dpro_error err;
    plan.peak_bytes = 5;
    for (size_t i = 0; i < 3; i++)
        array_push(&plan.units,
                   ((struct plan_file_unit){strtab_add(&plan.strings, names[i], strlen(names[i])),
                                            i == 1}));
    write_plan(&plan);
    if (OUTCOME(&err, plan_file_read(folder, &back)) < 0 ||
        dpro_plan_read(folder, &summary, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(back.units.n, 3);
    assert_int_equal(back.peak_bytes, 5);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(strtab_get(&back.strings, back.units.at[i].name), names[i]);
        assert_int_equal(back.units.at[i].reshards, i == 1);
    }
    plan_file_fini(&plan);
    plan_file_fini(&back);
}

static void check_env(const struct plan_file *plan, const char *expected)
{
    struct set_file files[PLAN_MOST_FILES];
    char text[256] = "";
    for (size_t i = plan_stack_files(plan, files); i-- > 0;)
        if (strcmp(files[i].name, "horovod.env") == 0) {
            FILE *file = fmemopen(text, sizeof text, "w");
            assert_int_equal(writer_write_file(file, files[i].write, files[i].arg, NULL), 0);
            fclose(file);
        }
    assert_string_equal(text, expected);
}

TEST_IN_FOLDER(horovods_settings_come_back_as_they_were_written)
{
    struct plan_file plan = some_plan(), back;
    struct dpro_error err;
    plan.stack = intern(&plan, "horovod");
    plan.cycle_ns = 2500000;
    plan.fuses = true;
    plan.fusion_bytes = 5 << 20;
    write_plan(&plan);
    if (OUTCOME(&err, plan_file_read(folder, &back)) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(back.cycle_ns, plan.cycle_ns);
    assert_true(back.fuses);
    assert_int_equal(back.fusion_bytes, plan.fusion_bytes);
    check_env(&back, "HOROVOD_FUSION_THRESHOLD=5242880\nHOROVOD_CYCLE_TIME=2.5\n");
    back.fuses = false;
    back.profiled_cycle_ns = back.cycle_ns;
    check_env(&back, "HOROVOD_DISABLE_GROUP_FUSION=1\nHOROVOD_FUSION_THRESHOLD=134217728\n");
    plan_file_fini(&plan);
    plan_file_fini(&back);
}

TEST_IN_FOLDER(what_makes_no_sense_is_refused_by_name)
{
    static const char *const cases[][2] = {
        {JOB "'computation':{'compile':['a','a']}}", "computation.compile: a module is"},
        {JOB "'computation':{'bf16':['a','','']}}", "computation.bf16: a module is"},
        {JOB "'computation':{'compile':[],'bf16':[]}}", "job.models has no parameters"},
        {JOB "'computation':{'compile':['a'],'bf16':[]}}", "changes_numerics is not true"},
        {JOB "'memory':{'recompute':['a','a']}}", "memory.recompute: a module is"},
        {JOB "'memory':{'recompute':['']}}", NULL},
        {JOB "'communication':{'cycle_time_ms':0}}",
         "'communication.cycle_time_ms' has to be a time above 0"},
        {JOB "'communication':{'fusion_threshold_bytes':-1}}", "has to be a number of bytes"},
        {JOB "'sharding':{'units':[]}}", "job.models has no parameters"},
        {JOB "'sharding':{'units':{}}}", "'sharding.units' has to be a list"},
        {JOB "'sharding':[]}", "'sharding' has to be an object"},
        {JOB "'sharding':{'units':[1]}}", "'sharding.units[0]' has to be an object"},
        {JOB "'communication':{'buckets':[['a'],{'parameters':['b'],'partitions':1.5}]}}",
         "'communication.buckets[1].partitions' has to be a whole number from 1 to 1024"},
        {JOB "'communication':{'buckets':[['a', 1]]}}",
         "'communication.buckets[0][1]' has to be a name in quotes"},
        {JOB "'sharding':{'units':[{'name':'a'},{'name':'a'}]}}",
         "sharding.units: a module is there twice: a"},
        {JOB "'sharding':{'units':[{'name':'','reshard_after_forward':true}]}}", NULL},
        {JOB "'computation':{'compile':['a'],'bf16':[''],'changes_numerics':true}}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpro_plan_summary summary;
        struct dpro_error err = {.code = 0};
        write_text("plan.json", cases[i][0]);
        int rc = dpro_plan_read(folder, &summary, &err);
        assert_int_equal(rc, cases[i][1] ? DPRO_EFORMAT : 0);
        if (cases[i][1] && !strstr(err.text, cases[i][1]))
            fail_msg("'%s' does not say '%s'", err.text, cases[i][1]);
    }
}
