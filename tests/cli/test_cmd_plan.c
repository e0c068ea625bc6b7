/* test_cmd_plan.c -- the drawing, the figures, the JSON and the mistakes of `plan schedule`. */
#include "harness.h"
#include <jansson.h>
#include "base/file.h"
#include "cli/capture.h"

#define RUN_FILE                                                                        \
    "model: {family: llama, layers: 6, width: 32, heads: 2, context: 64, tied: true}\n" \
    "data: {text: [builtin:stories]}\nbatch: {sequences: 16, leaf: 2}\ntrain: {steps: 2}\n"

static void write_run(void)
{
    LS_CHECK_OK(ls_file_write_atomic("run.yaml", RUN_FILE, strlen(RUN_FILE)));
}

static void check_has(const ls_str *text, const char *part)
{
    if (!strstr(text->p, part))
        ls_test_fail(__FILE__, __LINE__, "\"%s\" is not in:\n%s", part, text->p);
}

LS_TEST(plan_schedule_draws_a_line_for_each_rank)
{
    ls_capture c;

    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "3");
    LS_CHECK_EQ(c.code, 0);
    check_has(&c.out, "rank 0  F0F1....B0==F2B1==..B2==\n"
                      "rank 1  ..F0B0==F1B1==F2B2==....\n");
    check_has(&c.out,
              "1f1b: 2 stages, 3 micro-batches; a step takes 12 units of time, bubble 25.0 % "
              "(formula: 25.0 %)");
    check_has(&c.out, "rank      computes     idle  activations\n"
                      "   0             9   25.0 %            2\n"
                      "   1             9   25.0 %            1\n");
    ls_capture_release(&c);

    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "3", "--schedule",
               "zero-bubble");
    check_has(&c.out, "rank 0  F0F1..I0W0F2I1W1I2W2\nrank 1  ..F0I0F1I1W0F2I2W1W2\n");
    check_has(&c.out, "W0: its weight gradient");
    ls_capture_release(&c);

    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "2", "--schedule",
               "interleaved");
    check_has(&c.out, "rank 0  F0aF1aF0bF1b......B0b===");
    check_has(&c.out, "2 chunks on each; a step takes 7.5 units of time, bubble 20.0 %");
    ls_capture_release(&c);

    /* Pieces that fit into so many columns, and end where the shortest operation does. */
    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "3", "--width", "29");
    check_has(&c.out, "rank 0  F0F1....B0==F2B1==..\nrank 1");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "3", "--width", "28");
    check_has(&c.out, "rank 0  F0F1....B0==F2B1==..\nrank 1  ..F0B0==F1B1==F2B2==\n\n"
                      "rank 0  B2==\nrank 1  ....\n");
    ls_capture_release(&c);
}

LS_TEST(plan_schedule_takes_costs_from_flags)
{
    ls_capture c;

    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "1", "--forward", "10",
               "--backward", "25", "--transfer", "5");
    check_has(&c.out, "a step takes 80 units of time, bubble");
    LS_CHECK(!strstr(c.out.p, "formula"));
    ls_capture_release(&c);
}

LS_TEST(plan_schedule_as_json_has_every_operation)
{
    ls_capture c;

    LS_CAPTURE(&c, "plan", "schedule", "--stages", "3", "--micro-batches", "4", "--schedule",
               "gpipe", "--json");
    LS_CHECK_EQ(c.code, 0);
    json_t *all = json_loads(c.out.p, 0, NULL), *ranks = json_object_get(all, "ranks");
    LS_CHECK_EQ(json_array_size(ranks), 3);
    LS_CHECK_NEAR(json_number_value(json_object_get(all, "step")), 18, 1e-9);
    LS_CHECK_NEAR(json_number_value(json_object_get(all, "bubble_formula")), 6.0 / 18, 1e-9);
    for (size_t r = 0; r < 3; r++) {
        json_t *rank = json_array_get(ranks, r), *ops = json_object_get(rank, "operations");
        double end = 0;
        LS_CHECK_EQ(json_array_size(ops), 8);
        LS_CHECK_EQ(json_integer_value(json_object_get(rank, "peak_activations")), 4);
        for (size_t i = 0; i < 8; i++) {
            json_t *op = json_array_get(ops, i);
            LS_CHECK(json_number_value(json_object_get(op, "start")) >= end);
            end = json_number_value(json_object_get(op, "end"));
        }
    }
    json_decref(all);
    ls_capture_release(&c);
}

LS_TEST(plan_schedule_writes_a_picture)
{
    ls_capture c;
    ls_str svg;

    ls_str_init(&svg);
    LS_CAPTURE(&c, "plan", "schedule", "--schedule", "interleaved", "--svg", "a.svg");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_OK(ls_file_read("a.svg", LS_MIB, &svg));
    check_has(&svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"");
    check_has(&svg, ">F7b</text>");
    check_has(&svg, "interleaved, 4 stages, 8 micro-batches, 2 chunks: a step takes "
                    "28.5 units of time, bubble 15.8 %");
    int rects = 0;
    for (const char *p = svg.p; (p = strstr(p, "<rect")) != NULL; p++)
        rects++;
    LS_CHECK_EQ(rects, 1 + 4 + 4 * 8 * 2 * 2 + 3); /* ground, ranks, operations, legend */
    check_has(&svg, "a, b: chunks of layers, later ones paler</text>");
    check_has(&svg, ">24</text>"); /* the axis */
    ls_capture_release(&c);

    /* It is as wide as its title where the table is small. */
    LS_CAPTURE(&c, "plan", "schedule", "--stages", "2", "--micro-batches", "1", "--svg", "b.svg");
    ls_str_clear(&svg);
    LS_CHECK_OK(ls_file_read("b.svg", LS_MIB, &svg));
    const char *wide = strstr(svg.p, "width=\""),
               *title = strstr(svg.p, "1f1b, 2 stages, 1 micro-");
    LS_CHECK(wide && title);
    LS_CHECK(strtol(wide + 7, NULL, 10) >= 70 + 8 * (long)strcspn(title, "<"));
    LS_CHECK(!strstr(svg.p, "paler"));
    ls_str_release(&svg);
    ls_capture_release(&c);
}

LS_TEST(plan_schedule_of_a_run_cuts_its_layers_by_cost)
{
    ls_capture c;

    write_run();
    LS_CAPTURE(&c, "plan", "schedule", "run.yaml", "--stages", "3");
    LS_CHECK_EQ(c.code, 0);
    check_has(&c.out, "1f1b: 3 stages, 8 micro-batches; a step takes ");
    check_has(&c.out, " Gop, bubble ");
    check_has(&c.out, "embedding, 0-");
    check_has(&c.out, "5, head (with a copy of the embedding)\n");
    ls_capture_release(&c);

    /* What the run itself says. */
    LS_CAPTURE(&c, "plan", "schedule", "run.yaml", "--set", "mesh.pp=3", "--set",
               "mesh.schedule=interleaved");
    check_has(&c.out, "interleaved: 3 stages, 8 micro-batches, 2 chunks");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "plan", "schedule", "run.yaml", "--set", "mesh.pp=2", "--set",
               "mesh.schedule=zero-bubble");
    check_has(&c.out, "zero-bubble: 2 stages, 8 micro-batches; a step takes ");
    check_has(&c.out, "W0: its weight gradient");
    ls_capture_release(&c);

    /* 16 sequences in leaves of 4, on two copies of the pipeline: 2 micro-batches each. */
    LS_CAPTURE(&c, "plan", "schedule", "run.yaml", "--stages", "2", "--gflops", "10", "--gbits",
               "1", "--set", "batch.leaf=4", "--set", "mesh.dp=2");
    LS_CHECK_EQ(c.code, 0);
    check_has(&c.out, "2 micro-batches; a step takes ");
    check_has(&c.out, " ms, bubble ");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "plan", "schedule", "run.yaml", "--stages", "2", "--gflops", "1e-4"); /* slow */
    check_has(&c.out, " min, bubble ");
    LS_CHECK(!strstr(c.out.p, "e+"));
    ls_capture_release(&c);

    LS_CAPTURE(&c, "plan", "schedule", "run.yaml"); /* mesh.pp is 1 */
    check_has(&c.out, "1f1b: 1 stage, 8 micro-batches; ");
    check_has(&c.out, "embedding, 0-5, head\n");
    ls_capture_release(&c);
}

/* tf32 is fp32 in memory: stages send each other the same bytes, so the step takes as long. */
LS_TEST(plan_schedule_counts_the_bytes_of_tf32)
{
    ls_capture text[2];
    const char *precision[] = {"precision=fp32", "precision=tf32"};

    write_run();
    for (int i = 0; i < 2; i++)
        LS_CAPTURE(&text[i], "plan", "schedule", "run.yaml", "--stages", "2", "--gflops", "10",
                   "--gbits", "0.01", "--set", "device.kind=cuda", "--set", precision[i]);
    LS_CHECK_EQ(text[0].code, 0);
    LS_CHECK_EQ(text[1].code, 0);
    LS_CHECK_STR(text[1].out.p, text[0].out.p);
    for (int i = 0; i < 2; i++)
        ls_capture_release(&text[i]);
}

static void check_error(const char *const *words, const char *message)
{
    ls_capture c;

    ls_capture_run(&c, words);
    LS_CHECK_EQ(c.code, 2);
    check_has(&c.err, message);
    ls_capture_release(&c);
}
#define CHECK_ERROR(message, ...) \
    check_error((const char *const[]){"plan", "schedule", __VA_ARGS__, NULL}, message)

LS_TEST(plan_schedule_says_what_cannot_be_meant)
{
    write_run();
    CHECK_ERROR("--stages must be a whole number from 1 to 4096, not \"0\"", "--stages", "0");
    CHECK_ERROR("--micro-batches must be a whole number", "--micro-batches", "many");
    CHECK_ERROR("--forward must be a number from 1e-9 to 1e15, not \"0\"", "--forward", "0");
    CHECK_ERROR("--transfer must be a number from 1e-9 to 1e15, or 0, not \"-1\"", "--transfer=-1");
    CHECK_ERROR("--backward must be a number", "--backward", "nan");
    CHECK_ERROR("--backward must be a number", "--backward", "1e-320");
    CHECK_ERROR("gpipe, 1f1b, interleaved or zero-bubble", "--schedule", "2f2b");
    CHECK_ERROR("a 1f1b schedule has one chunk of layers for each rank, not 2", "--chunks", "2");
    CHECK_ERROR("are too many for a table", "--stages", "4096", "--micro-batches", "65536");
    CHECK_ERROR("--gflops is for the model of a run file", "--gflops", "5");
    CHECK_ERROR("--forward is for a table without a run file", "run.yaml", "--forward", "5");
    CHECK_ERROR("--gbits needs --gflops", "run.yaml", "--gbits", "1");
    CHECK_ERROR("7 stages cannot share 6 layers", "run.yaml", "--stages", "7");
    CHECK_ERROR("12 stages cannot share 6 layers", "run.yaml", "--stages", "6", "--schedule",
                "interleaved");
    CHECK_ERROR("cannot open run file", "none.yaml");
    CHECK_ERROR("mesh.schedule", "run.yaml", "--set", "mesh.schedule=gpipe");
}
