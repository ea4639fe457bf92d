/* What is written is whole, exact and valid, or it is not there. */
#include <fcntl.h>
#include <glob.h>
#include <isa-l/igzip_lib.h>
#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/writer.h"
#include "case.h"
#include "temp_folder.h"

/* What `write` puts out, as a string. */
static char *text_of(void (*write)(struct writer *, const void *))
{
    char *text = NULL;
    size_t len;
    FILE *file = open_memstream(&text, &len);
    assert_int_equal(writer_write_file(file, write, NULL, NULL), 0);
    fclose(file);
    return text;
}

static void write_times(struct writer *w, const void *arg)
{
    (void)arg;
    const int64_t values[] = {0,         1,        -1, 999999, 1000000, -1234567890123456789,
                              INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        writer_object(w, MS("ms", values[i]), US("us", values[i]));
        writer_text(w, "\n");
        w->need_comma = false;
    }
}

TEST(nanoseconds_are_written_exactly)
{
    char *text = text_of(write_times);
    assert_string_equal(text, "{\"ms\":0.000000,\"us\":0.000}\n"
                              "{\"ms\":0.000001,\"us\":0.001}\n"
                              "{\"ms\":-0.000001,\"us\":-0.001}\n"
                              "{\"ms\":0.999999,\"us\":999.999}\n"
                              "{\"ms\":1.000000,\"us\":1000.000}\n"
                              "{\"ms\":-1234567890123.456789,\"us\":-1234567890123456.789}\n"
                              "{\"ms\":9223372036854.775807,\"us\":9223372036854775.807}\n"
                              "{\"ms\":-9223372036854.775808,\"us\":-9223372036854775.808}\n");
    free(text);
}

static void write_all_fields(struct writer *w, const void *arg)
{
    (void)arg;
    writer_object(w, TEXT("text", "a\"b"), TEXT("none", NULL), INT("int", UINT32_MAX),
                  BOOL("bool", true), FIXED("fixed", 1.25, 1), FIXED("nan", NAN, 1));
    writer_section(w, "unknown", '[');
    writer_object(w, INT_IF("int", false, 1), MS_KNOWN("ms", -1), FIXED_IF("fixed", false, 1, 1));
    writer_object(w, INT_IF("int", true, 1), MS_KNOWN("ms", 0), FIXED_IF("fixed", true, 1, 1));
    writer_close(w, ']');
}

TEST(fields_that_are_not_known_are_null)
{
    char *text = text_of(write_all_fields);
    assert_string_equal(text, "{\"text\":\"a\\\"b\",\"none\":null,\"int\":4294967295,\"bool\":true,"
                              "\"fixed\":1.3,\"nan\":null},\n\"unknown\":["
                              "{\"int\":null,\"ms\":null,\"fixed\":null},"
                              "{\"int\":1,\"ms\":0.000000,\"fixed\":1.0}]");
    free(text);
}

/* What can't be made for lack of memory must not look whole. */
static void write_what_there_is_no_memory_for(struct writer *w, const void *arg)
{
    writer_text(w, arg);
    mem_fail();
}

TEST(a_file_without_the_memory_for_it_is_not_left_behind)
{
    char path[] = "/tmp/dpro-test-writer-XXXXXX";
    struct dpro_error err = {.code = 0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    assert_int_equal(
        writer_write_path(path, false, write_what_there_is_no_memory_for, "some of it", &err),
        DPRO_ENOMEM);
    assert_int_equal(err.code, DPRO_ENOMEM);
    assert_int_equal(access(path, F_OK), -1);
}

static void write_numbers(struct writer *w, const void *arg)
{
    (void)arg;
    writer_open(w, '[');
    writer_json_fixed(w, 1.25, 1);
    writer_json_fixed(w, -0.04, 1);
    writer_json_fixed(w, -2.5, 0);
    writer_json_fixed(w, 0.5, 3);
    writer_json_fixed(w, NAN, 2);
    writer_json_fixed(w, INFINITY, 2);
    writer_json_fixed(w, 1e300, 2);
    writer_json_int(w, -7);
    writer_close(w, ']');
}

TEST(numbers_have_fixed_digits_in_any_locale)
{
    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        setlocale(LC_ALL, "C.UTF-8");
    char *text = text_of(write_numbers);
    setlocale(LC_ALL, "C");
    assert_string_equal(text, "[1.3,0.0,-3,0.500,null,null,null,-7]");
    free(text);
}

static void write_strings(struct writer *w, const void *arg)
{
    (void)arg;
    writer_open(w, '{');
    writer_key(w, "a\"b");
    writer_string(w, "quote\" back\\ \n\t\x01\x7f");
    writer_key(w, "utf8");
    writer_string(w, "\xC3\xA9 \xC3( \xED\xA0\x80 \xF0\x9F\x98\x80 \xE2\x82");
    writer_key(w, "html");
    writer_string(w, "</script><!--<SCRIPT a<b <4 <");
    writer_key(w, "none");
    writer_string(w, NULL);
    writer_key(w, "nul");
    writer_string_n(w, "x\0y", 3);
    writer_key(w, "list");
    writer_open(w, '[');
    writer_newline(w);
    writer_json_int(w, 1);
    writer_newline(w);
    writer_json_ms(w, 5);
    writer_close(w, ']');
    writer_close(w, '}');
}

TEST(strings_are_valid_json_and_harmless_in_html)
{
    char *text = text_of(write_strings);
    assert_string_equal(text,
                        "{\"a\\\"b\":\"quote\\\" back\\\\ \\n\\t\\u0001\\u007f\","
                        "\"utf8\":\"\xC3\xA9 \xEF\xBF\xBD( \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD "
                        "\xF0\x9F\x98\x80 \xEF\xBF\xBD\xEF\xBF\xBD\","
                        "\"html\":\"\\u003c/script>\\u003c!--\\u003cSCRIPT a<b <4 <\","
                        "\"none\":null,\"nul\":\"x\\u0000y\",\"list\":[\n1,\n0.000005]}");
    free(text);
}

static char *read_all(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *data = malloc(8 << 20);
    *len = fread(data, 1, 8 << 20, file);
    fclose(file);
    return data;
}

TEST(gzip_holds_what_was_written)
{
    const char *path;
    struct writer w;
    struct dpro_error err = {0};
    path = in_folder("a.gz");
    const int n_lines[] = {0, 1, 200000}; /* nothing, one piece, many buffers */
    for (size_t c = 0; c < 3; c++) {
        char *expected;
        size_t expected_len;
        FILE *copy = open_memstream(&expected, &expected_len);
        assert_int_equal(writer_init_path(&w, path, true, &err), 0);
        for (int i = 0; i < n_lines[c]; i++) {
            writer_printf(&w, "line %d of %x\n", i, (unsigned)i * 2654435761u);
            fprintf(copy, "line %d of %x\n", i, (unsigned)i * 2654435761u);
        }
        fclose(copy);
        assert_int_equal(writer_finish(&w, &err), 0);
        assert_int_equal(writer_commit(&w, &err), 0);
        writer_fini(&w);

        size_t len;
        char *packed = read_all(path, &len), *out = malloc(expected_len + 16);
        struct inflate_state inflate;
        isal_inflate_init(&inflate);
        inflate.crc_flag = IGZIP_GZIP; /* checks the trailer as well */
        inflate.next_in = (uint8_t *)packed;
        inflate.avail_in = (uint32_t)len;
        inflate.next_out = (uint8_t *)out;
        inflate.avail_out = (uint32_t)expected_len + 16;
        assert_int_equal(isal_inflate(&inflate), ISAL_DECOMP_OK);
        assert_int_equal(inflate.block_state, ISAL_BLOCK_FINISH);
        assert_int_equal(inflate.total_out, expected_len);
        assert_memory_equal(out, expected, expected_len);
        free(out);
        free(packed);
        free(expected);
    }
    unlink(path);
}

TEST(a_file_appears_only_when_committed)
{
    const char *path;
    struct writer w;
    size_t len;
    path = in_folder("b.txt");
    assert_int_equal(writer_init_path(&w, path, false, NULL), 0);
    writer_text(&w, "old");
    assert_int_equal(writer_finish(&w, NULL), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(writer_commit(&w, NULL), 0);
    writer_fini(&w);

    assert_int_equal(writer_init_path(&w, path, false, NULL), 0);
    writer_text(&w, "new, but given up");
    writer_fini(&w); /* the old file stays, the temporary one goes: remove_empty_folder checks */
    char *data = read_all(path, &len);
    assert_int_equal(len, 3);
    assert_memory_equal(data, "old", 3);
    free(data);
    unlink(path);
}

TEST(a_full_disk_is_told_with_name_and_reason)
{
    struct dpro_error err = {0};
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    assert_int_equal(writer_write_file(full, write_times, NULL, &err), DPRO_EIO);
    assert_string_equal(err.text, "/dev/full: can't be written: No space left on device");
    fclose(full);
}

TEST(a_fifo_is_written_to_not_replaced)
{
    const char *path;
    char text[8] = "";
    struct writer w;
    struct stat status;
    path = in_folder("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_int_equal(writer_init_path(&w, path, false, NULL), 0);
    writer_text(&w, "a b");
    assert_int_equal(writer_finish(&w, NULL), 0);
    assert_int_equal(writer_commit(&w, NULL), 0);
    writer_fini(&w);
    assert_int_equal(stat(path, &status), 0);
    assert_true(S_ISFIFO(status.st_mode));
    assert_int_equal(read(reader, text, sizeof text), 3);
    assert_memory_equal(text, "a b", 3);
    close(reader);
    unlink(path);
}

TEST(a_folder_that_is_no_folder_is_told)
{
    struct writer w;
    struct dpro_error err = {0};
    assert_int_equal(writer_init_path(&w, "/dev/null/x.json", false, &err), DPRO_EIO);
    assert_string_equal(err.text,
                        "/dev/null/x.json: can't be written: Not a directory; name another place");
    writer_fini(&w);
}

TEST(a_zeroed_writer_can_be_freed)
{
    struct writer w = {0};
    writer_fini(&w);
    writer_fini(&w);
}

int main(void)
{
    return run_cases(make_folder, remove_empty_folder);
}
