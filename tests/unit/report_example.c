/* Writes the report of a made-up job, to look at: report_example FOLDER RANKS LAYERS
 * [hostile|whatif|single|empty|- [forgetful]]. */

#include "report_fake.h"

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const char *how = argc > 4 ? argv[4] : "";
    struct fake_options options = {.n_ranks = atoi(argv[2]),
                                   .n_layers = atoi(argv[3]),
                                   .memory = argc < 6,
                                   .hostile = strcmp(how, "hostile") == 0,
                                   .what_if = strcmp(how, "whatif") == 0,
                                   .single = strcmp(how, "single") == 0,
                                   .empty = strcmp(how, "empty") == 0};
    struct dpro_error err;
    struct fake *fake = fake_create(&options);
    int rc = dpro_report_text(fake_report(fake), stdout, &err);
    if (rc == 0)
        rc = dpro_report_folder(fake_report(fake), argv[1], &err);
    if (rc < 0)
        fprintf(stderr, "%s\n", err.text);
    fake_destroy(fake);
    return rc < 0;
}
