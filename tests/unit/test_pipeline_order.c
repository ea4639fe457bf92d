/* Passes of ranks with several stages, against PyTorch 2.13's schedules, and the messages between
 * them. */

#include "case.h"
#include "cost/program/pipeline_order.h"

enum { MOST_TEXT = 4096 };

/* Passes as PyTorch writes them. */
static void write_passes(const pipeline_steps *steps, char text[MOST_TEXT])
{
    size_t n = 0;
    EACH (const struct pipeline_step, step, *steps)
        if (step->action < DO_SEND)
            n += (size_t)snprintf(text + n, MOST_TEXT - n, "%s%u%c%u", n > 0 ? " " : "",
                                  step->stage, "FBIW"[step->action], step -> number);
}

static void check_passes(struct pipeline_shape shape, const char *const *expected)
{
    struct arena arena = {0};
    char text[MOST_TEXT];
    pipeline_steps *steps = pipeline_order(shape, &arena);
    for (uint32_t r = 0; r < shape.n_ranks; r++) {
        write_passes(&steps[r], text);
        assert_string_equal(text, expected[r]);
        array_fini(&steps[r]);
    }
    arena_fini(&arena);
}

TEST(passes_of_interleaved_stages_are_pytorchs)
{
    static const char *const two[] = {
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"};
    static const char *const three[] = {"0F0 0F1 0F2 3F0 3F1 3F2 3B0 3B1 3B2 0B0 0B1 0B2",
                                        "1F0 1F1 1F2 4F0 4F1 4F2 4B0 4B1 4B2 1B0 1B1 1B2",
                                        "2F0 2F1 2F2 5F0 5B0 5F1 5B1 5F2 5B2 2B0 2B1 2B2"};
    check_passes((struct pipeline_shape){2, 2, 4, DPRO_SCHEDULE_INTERLEAVED}, two);
    check_passes((struct pipeline_shape){3, 2, 3, DPRO_SCHEDULE_INTERLEAVED}, three);
}

TEST(passes_of_zero_bubble_schedules_are_pytorchs)
{
    static const char *const two[] = {"0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1",
                                      "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1"};
    static const char *const three[] = {
        "0F0 0F1 0F2 3F0 3F1 3F2 3I0 3W0 3I1 3W1 3I2 3W2 0I0 0W0 0I1 0W1 0I2 0W2",
        "1F0 1F1 1F2 4F0 4F1 4I0 4F2 4I1 4W0 4I2 4W1 1I0 4W2 1I1 1W0 1I2 1W1 1W2",
        "2F0 2F1 2F2 5F0 5I0 5F1 5I1 5F2 5I2 5W0 2I0 5W1 2I1 5W2 2I2 2W0 2W1 2W2"};
    static const char *const alone[] = {"0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
                                        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
                                        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3"};
    check_passes((struct pipeline_shape){3, 1, 4, DPRO_SCHEDULE_ZERO_BUBBLE}, alone);
    check_passes((struct pipeline_shape){2, 2, 2, DPRO_SCHEDULE_ZERO_BUBBLE}, two);
    check_passes((struct pipeline_shape){3, 2, 3, DPRO_SCHEDULE_ZERO_BUBBLE}, three);
}

TEST(passes_of_one_stage_are_all_forward_first_or_take_turns)
{
    static const char *const gpipe[] = {"0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"};
    static const char *const turns[] = {"0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"};
    check_passes((struct pipeline_shape){2, 1, 2, DPRO_SCHEDULE_GPIPE}, gpipe);
    check_passes((struct pipeline_shape){2, 1, 3, DPRO_SCHEDULE_1F1B}, turns);
}

TEST(a_rank_has_as_many_micro_batches_in_flight_as_its_passes_leave)
{
    for (uint32_t schedule = DPRO_SCHEDULE_GPIPE; schedule < DPRO_N_SCHEDULES; schedule++)
        for (uint32_t ranks = 2; ranks <= 5; ranks++)
            for (uint32_t chunks = 1; chunks <= 3; chunks++)
                for (uint32_t n = 1; n <= 12; n++) {
                    struct pipeline_shape shape = {ranks, chunks, n, schedule};
                    struct arena arena = {0};
                    if (!pipeline_has_rounds(shape))
                        continue;
                    pipeline_steps *steps = pipeline_order(shape, &arena);
                    for (uint32_t r = 0; r < ranks; r++) {
                        uint32_t in_flight = 0, most = 0;
                        EACH (const struct pipeline_step, step, steps[r]) {
                            in_flight += step->action == DO_FORWARD;
                            in_flight -= step->action == DO_BACKWARD || step->action == DO_WEIGHTS;
                            most = in_flight > most ? in_flight : most;
                        }
                        assert_int_equal(pipeline_in_flight(shape, r), most);
                        array_fini(&steps[r]);
                    }
                    arena_fini(&arena);
                }
}

/* Where among steps; n: nowhere. */
static size_t find(const pipeline_steps *steps, struct pipeline_step step)
{
    size_t i = 0;
    while (i < steps->n && (steps->at[i].action != step.action || steps->at[i].back != step.back ||
                            steps->at[i].stage != step.stage || steps->at[i].number != step.number))
        i++;
    return i;
}

static void check_messages(const pipeline_steps *steps, struct pipeline_shape shape)
{
    for (uint32_t r = 0; r < shape.n_ranks; r++)
        EACH (const struct pipeline_step, step, steps[r]) {
            size_t at = (size_t)(step - steps[r].at);
            if (step->action != DO_SEND)
                continue;
            assert_true(at > 0 && steps[r].at[at - 1].stage == step->stage &&
                        steps[r].at[at - 1].number == step->number);
            uint32_t to = step->back ? step->stage - 1 : step->stage + 1;
            const pipeline_steps *there = &steps[to % shape.n_ranks];
            size_t asked =
                find(there, (struct pipeline_step){DO_RECEIVE, step->back, to, step->number});
            uint8_t pass =
                step->back ? pipeline_splits(shape) ? DO_INPUTS : DO_BACKWARD : DO_FORWARD;
            size_t used = find(there, (struct pipeline_step){pass, step->back, to, step->number});
            assert_true(asked < used && used < there->n);
        }
}

TEST(each_message_is_asked_for_before_the_pass_that_needs_it)
{
    for (uint32_t ranks = 2; ranks <= 5; ranks++)
        for (uint32_t chunks = 1; chunks <= 3; chunks++)
            for (uint32_t n = 1; n <= 12; n++)
                for (int splits = 0; splits < 2; splits++) {
                    struct pipeline_shape shape = {ranks, chunks, n,
                                                   splits ? DPRO_SCHEDULE_ZERO_BUBBLE
                                                          : DPRO_SCHEDULE_INTERLEAVED};
                    struct arena arena = {0};
                    if (!pipeline_has_rounds(shape))
                        continue;
                    pipeline_steps *steps = pipeline_order(shape, &arena);
                    check_messages(steps, shape);
                    for (uint32_t r = 0; r < ranks; r++) {
                        uint32_t passes = chunks * n * (splits ? 3 : 2), found = 0;
                        EACH (const struct pipeline_step, step, steps[r])
                            found += step->action < DO_SEND;
                        assert_int_equal(found, passes);
                        array_fini(&steps[r]);
                    }
                    arena_fini(&arena);
                }
}

TEST(rounds_have_as_many_micro_batches)
{
    assert_true(pipeline_has_rounds((struct pipeline_shape){4, 2, 10, DPRO_SCHEDULE_INTERLEAVED}));
    assert_true(pipeline_has_rounds((struct pipeline_shape){4, 2, 3, DPRO_SCHEDULE_INTERLEAVED}));
    assert_false(pipeline_has_rounds((struct pipeline_shape){2, 2, 5, DPRO_SCHEDULE_INTERLEAVED}));
}
