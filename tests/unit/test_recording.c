/* Whatever a rank.json holds and wherever it is cut, the trace directory can be told of. */

#include <dpro/recording.h>

#include "base/base.h"
#include "case.h"
#include "temp_folder.h"

static const char whole[] =
    "{\"schema\":\"dpro.rank/1\",\"rank\":7,\"world_size\":8,\"host_name\":\"a\\u0062\",\"pid\":1,"
    "\"complete\":true,\"steps\":{\"before\":[1,2],\"timing\":[{\"step\":1},{\"step\":[2,3]}]},"
    "\"windows\":[{\"files\":[]}],\"warnings\":[\"one\",2,\"three \\\"x\\\"\"]}";

static void write_facts(const char *text, size_t len)
{
    write_bytes("host0/rank3/rank.json", text, len);
}

TEST(the_facts_of_a_rank_are_read)
{
    struct dpro_recording *recording;
    write_facts(whole, sizeof whole - 1);
    assert_int_equal(dpro_recording_read(folder, &recording, NULL), 0);
    assert_int_equal(dpro_recording_n_ranks(recording), 1);
    struct dpro_recording_rank rank = dpro_recording_rank(recording, 0);
    assert_string_equal(rank.folder, "host0/rank3");
    assert_int_equal(rank.rank, 7); /* not its folder's */
    assert_int_equal(rank.world_size, 8);
    assert_int_equal(rank.complete, 1);
    assert_int_equal(rank.n_steps, 2);
    assert_int_equal(rank.n_warnings, 2);
    assert_null(rank.problem);
    dpro_recording_destroy(recording);
}

TEST(of_a_repeated_key_the_last_counts)
{
    static const char twice[] = "{\"warnings\":[\"a\",\"b\"],\"warnings\":[\"c\"],"
                                "\"steps\":{\"timing\":[{},{}],\"timing\":[{}]}}";
    struct dpro_recording *recording;
    write_facts(twice, sizeof twice - 1);
    assert_int_equal(dpro_recording_read(folder, &recording, NULL), 0);
    struct dpro_recording_rank rank = dpro_recording_rank(recording, 0);
    assert_int_equal(rank.n_warnings, 1);
    assert_int_equal(rank.n_steps, 1);
    dpro_recording_destroy(recording);
}

TEST(a_file_cut_anywhere_is_a_problem_of_its_rank)
{
    for (size_t cut = 0; cut < sizeof whole - 1; cut++) {
        struct dpro_recording *recording;
        write_facts(whole, cut);
        assert_int_equal(dpro_recording_read(folder, &recording, NULL), 0);
        assert_int_equal(dpro_recording_n_ranks(recording), 1);
        assert_non_null(dpro_recording_rank(recording, 0).problem);
        assert_int_equal(dpro_recording_rank(recording, 0).complete, 0);
        dpro_recording_destroy(recording);
    }
}

TEST(changed_bytes_do_no_harm)
{
    static const char others[] = "\"{}[],:\\0-e\n\x80";
    char text[sizeof whole];
    for (size_t at = 0; at < sizeof whole - 1; at++) {
        for (size_t k = at % 3; k < sizeof others - 1; k += 3) {
            struct dpro_recording *recording;
            memcpy(text, whole, sizeof whole);
            text[at] = others[k];
            write_facts(text, sizeof whole - 1);
            assert_int_equal(dpro_recording_read(folder, &recording, NULL), 0);
            struct dpro_recording_rank rank = dpro_recording_rank(recording, 0);
            assert_true(rank.rank >= 0 && rank.world_size >= 0 && rank.n_steps >= 0);
            dpro_recording_destroy(recording);
        }
    }
}

int main(void)
{
    return run_cases(make_folder, remove_folder);
}
