/* test_cmd_bench.c -- `bench kernels` with good and bad flags. */
#include "harness.h"

#include "cli/command.h"
#include "device/device.h"

extern const ls_command ls_cmd_bench;

/* Runs the command with flags given as name, value, ..., NULL; a switch has the value NULL. */
static ls_status run(const char *const *flags)
{
    const ls_command *k = ls_cmd_bench.subs[0];
    ls_args args = {.command = k};

    for (int i = 0; flags[i]; i += 2)
        for (const ls_flag *f = k->flags; f->name; f++)
            if (strcmp(f->name, flags[i]) == 0) {
                args.given[args.n_given].flag = f;
                args.given[args.n_given++].value = flags[i + 1];
            }
    return k->run(&args, NULL); /* it prints as it goes */
}

#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

LS_TEST(bench_kernels_refuses_flags_it_cannot_mean)
{
    LS_CHECK_FAILS(RUN("row", "norm_fw"), LS_EUSAGE, "no kernel row named \"norm_fw\"");
    LS_CHECK(strstr(ls_err_last()->hint, "\"norm_fwd\""));
    LS_CHECK_FAILS(RUN("shape", "7b"), LS_EUSAGE, "no shape named \"7b\"");
    LS_CHECK_FAILS(RUN("threads", "0"), LS_EUSAGE, "--threads is \"0\"");
    LS_CHECK_FAILS(RUN("threads", "2x"), LS_EUSAGE, "--threads is \"2x\"");
    LS_CHECK_FAILS(RUN("threads", ""), LS_EUSAGE, "--threads is \"\"");
    LS_CHECK_FAILS(RUN("isa", "sse"), LS_EUSAGE, "no kernels named \"sse\"");
    LS_CHECK_FAILS(RUN("device", "tpu"), LS_EUSAGE, "there is no device \"tpu\"");
    LS_CHECK_FAILS(RUN("precision", "fp4"), LS_EUSAGE, "--precision is \"fp4\"");
    LS_CHECK_FAILS(RUN("precision", "bf16"), LS_EUSAGE, "--precision bf16 is for a GPU");
    if (ls_device_unusable("cuda"))
        LS_CHECK_FAILS(RUN("device", "cuda"), LS_EUSAGE, "cannot use device \"cuda\"");
}

/* What the command prints for one row, as JSON: a time and a rate that are there and positive. */
LS_TEST(bench_kernels_prints_one_line_of_json_per_row)
{
    char line[512] = "";
    double ms = 0;

    LS_CHECK(freopen("out.jsonl", "w", stdout));
    LS_CHECK_OK(RUN("shape", "small", "row", "norm_bwd", "threads", "2", "json", NULL));
    fflush(stdout);
    FILE *f = fopen("out.jsonl", "re");
    LS_CHECK(f && fgets(line, sizeof line, f));
    LS_CHECK(strstr(line, "\"row\":\"norm_bwd\"") && strstr(line, "\"threads\":2"));
    LS_CHECK(strstr(line, "\"bytes_per_s\":") && strstr(line, "\"share\":"));
    LS_CHECK(strstr(line, "\"level\":\"L") || strstr(line, "\"level\":\"cache\""));
    LS_CHECK(strstr(line, "\"working_bytes\":") && strstr(line, "\"busy\":"));
    const char *at = strstr(line, "\"ms\":");
    LS_CHECK(at && sscanf(at, "\"ms\":%lf", &ms) == 1 && ms > 0);
    LS_CHECK(!fgets(line, sizeof line, f));
    fclose(f);
}

/* Each product of a block has its own line, with its own operations: qkv has three times proj's. */
LS_TEST_SECONDS(bench_kernels_shows_each_product_of_a_linear_row, 60)
{
    static const char *const names[] = {"qkv", "proj", "fc", "out"};
    static const char *const rows[] = {"linear_fwd", "linear_bwd_x", "linear_bwd_w"};
    static const double parts[] = {3, 1, 4, 4}; /* times 2 M C^2 */
    char line[512], want[64];

    for (size_t r = 0; r < LS_COUNT(rows); r++) {
        LS_CHECK(freopen("out.jsonl", "w", stdout));
        LS_CHECK_OK(RUN("shape", "small", "row", rows[r], "threads", "1", "json", NULL));
        fflush(stdout);
        FILE *f = fopen("out.jsonl", "re");
        LS_CHECK(f);
        for (size_t i = 0; i < LS_COUNT(names); i++) {
            double ms = 0, rate = 0;
            LS_CHECK(fgets(line, sizeof line, f));
            snprintf(want, sizeof want, "\"row\":\"%s\",\"product\":\"%s\"", rows[r], names[i]);
            LS_CHECK(strstr(line, want) && strstr(line, "\"level\":\"fma\""));
            const char *time = strstr(line, "\"ms\":"), *at = strstr(line, "\"flops_per_s\":");
            LS_CHECK(time && sscanf(time, "\"ms\":%lf", &ms) == 1);
            LS_CHECK(at && sscanf(at, "\"flops_per_s\":%lf", &rate) == 1);
            LS_CHECK_NEAR(rate * ms / 1e3 / (2.0 * 768 * 128 * 128), parts[i], 1e-3);
        }
        LS_CHECK(!fgets(line, sizeof line, f));
        fclose(f);
    }
}

LS_TEST(bench_kernels_prints_a_table_for_people)
{
    char text[4096] = "";

    LS_CHECK(freopen("out.txt", "w", stdout));
    LS_CHECK_OK(RUN("shape", "small", "row", "fill", "threads", "1"));
    fflush(stdout);
    FILE *f = fopen("out.txt", "re");
    LS_CHECK(f && fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    LS_CHECK(strstr(text, "B 12, T 64, C 128, F 512, V 256, H 4"));
    LS_CHECK(strstr(text, "measured peaks: ") && strstr(text, "of ceiling"));
    LS_CHECK(strstr(text, "\nfill ") && strstr(text, " GB/s "));
}
