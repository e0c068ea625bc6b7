/* test_mesh_choice.c -- mesh: auto: every mesh that works is found, the choice follows memory and links,
 * and is the same every time. */
#include "harness.h"
#include "config/check.h"
#include "config/runfile.h"
#include "plan/mesh_choice.h"

enum { VOCAB = 259 };

static void load(ls_run *run, const char *mesh, const char *train)
{
    char text[700];
    int n = snprintf(text, sizeof text,
                     "model: {family: gpt2, layers: 8, width: 256, heads: 8, context: 128}\n"
                     "data: {text: builtin:stories}\n"
                     "batch: {sequences: 32, leaf: 1}\n"
                     "train: {steps: 10, reduce: %s}\n"
                     "mesh: %s\n"
                     "eval: {sample: \"\"}\n",
                     train, mesh);

    LS_CHECK_OK(ls_runfile_load(
        run, &(ls_runfile_source){
                 .text = text, .len = (size_t)n, .no_environment = true, .no_files = true}));
}

static ls_mesh_choice_facts facts_of(int ranks, int per_node, int64_t mib)
{
    ls_mesh_choice_facts facts = {
        .ranks = ranks,
        .per_node = per_node,
        .vocab = VOCAB,
        .threads = 1,
        .free_bytes = mib * LS_MIB,
        .program_bytes = 10 * LS_MIB,
        .gflops = 40,
        .inside = {.alpha_ns = 400, .message_ns = 200, .ns_per_byte = 0.12},
        .between = {.alpha_ns = 25000, .message_ns = 3000, .ns_per_byte = 8.5},
        .combine_ns_per_byte = 0.05};

    LS_CHECK_OK(ls_kernel_pick("reference", &facts.kernels));
    return facts;
}

static const ls_mesh_choice_row *find(const ls_mesh_choice *c, const char *mesh)
{
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->rows[i].mesh, mesh) == 0)
            return &c->rows[i];
    ls_test_fail(__FILE__, __LINE__, "there is no mesh \"%s\"", mesh);
}

static void check_why(const ls_mesh_choice *c, const char *mesh, const char *words)
{
    const ls_mesh_choice_row *row = find(c, mesh);

    if (!strstr(row->why, words))
        ls_test_fail(__FILE__, __LINE__, "%s is refused because \"%s\", not \"%s\"", mesh, row->why,
                     words);
}

/* Rows that can be taken: by time, but for the first, and each one is a run that loads. */
static void check_rows(const ls_run *run, const ls_mesh_choice *c)
{
    LS_CHECK(c->can > 0 && c->can <= c->count);
    for (int i = 0; i < c->count; i++) {
        const ls_mesh_choice_row *r = &c->rows[i];
        ls_run one = *run;
        ls_mesh mesh;
        LS_CHECK_EQ(r->why[0] == '\0', i < c->can);
        if (i >= c->can)
            continue;
        ls_mesh_choice_apply(c, i, &one);
        LS_CHECK_OK(ls_check_run(&one, false, false));
        LS_CHECK_OK(ls_mesh_init(&mesh, &one, c->facts.ranks, 0));
        LS_CHECK(r->bytes > 0 && r->bytes <= c->facts.free_bytes);
        LS_CHECK(r->work_ns > 0 && r->idle_ns >= 0 && r->exchange_ns >= 0);
        LS_CHECK_NEAR(r->step_ns, r->work_ns + r->idle_ns + r->exchange_ns, 1);
        LS_CHECK(i < 2 || r->step_ns >= c->rows[i - 1].step_ns);
        LS_CHECK(r->step_ns >= c->rows[0].step_ns / 1.03);
    }
}

LS_TEST(choice_goes_through_all_meshes_and_takes_the_plain_one)
{
    ls_mesh_choice_facts facts = facts_of(4, 4, 100000);
    ls_mesh_choice c, again;
    ls_run run;

    load(&run, "auto", "fast");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    /* zero 0 to 3; tp 1 2 4; pp 1 2 4 as far as they divide; four schedules of a pipeline; cp as
     * far as ranks are left: 3 + 8 + 4 without tp groups, 2 + 4 with two, 1 with four. No experts.
     * Where every part of the model is there once (4 of pp=4, 4 of tp=2 pp=2, tp=4) ZeRO has
     * nothing to divide. */
    LS_CHECK_EQ(c.count, 4 * (11 + 2) + 4 + 4 + 1);
    for (int i = 0; i < c.count; i++)
        LS_CHECK(!strstr(c.rows[i].mesh, "dp=1 zero") || strstr(c.rows[i].mesh, " cp="));
    LS_CHECK(strcmp(c.rows[0].mesh, "dp=4") == 0); /* fast links, enough memory */
    LS_CHECK(find(&c, "dp=2 zero=2 pp=2 1f1b")->step_ns > 0);
    LS_CHECK(find(&c, "dp=2 zero=3 pp=2 1f1b")->exchange_ns >
             find(&c, "dp=2 zero=2 pp=2 1f1b")->exchange_ns);
    LS_CHECK(find(&c, "dp=1 pp=4 zero-bubble")->step_ns < find(&c, "dp=1 pp=4 1f1b")->step_ns);
    LS_CHECK(find(&c, "dp=1 pp=4 1f1b")->idle_ns > 0);
    LS_CHECK(find(&c, "dp=4 zero=1")->bytes < find(&c, "dp=4")->bytes);
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &again));
    LS_CHECK_EQ(again.count, c.count);
    LS_CHECK(memcmp(again.rows, c.rows, (size_t)c.count * sizeof *c.rows) == 0);
    ls_mesh_choice_release(&again);
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
}

/* Less and less memory: what is taken always fits, and in the end nothing does. */
LS_TEST(choice_follows_the_memory)
{
    bool recomputed = false, other = false;
    int64_t mib = 400;
    ls_status st = LS_OK;
    ls_run run;

    load(&run, "auto", "ordered");
    for (; mib > 0 && st == LS_OK; mib = mib * 8 / 10) {
        ls_mesh_choice_facts facts = facts_of(4, 4, mib);
        ls_mesh_choice c;
        st = ls_mesh_choice_make(&run, &facts, &c);
        if (st == LS_OK) {
            check_rows(&run, &c);
            recomputed |= c.rows[0].recompute != LS_RECOMPUTE_NONE;
            other |= strcmp(c.rows[0].mesh, "dp=4") != 0;
        }
        ls_mesh_choice_release(&c);
    }
    LS_CHECK_EQ(st, LS_ENOMEM);
    LS_CHECK(strstr(ls_err_last()->text, "no mesh of 4 ranks that fits"));
    LS_CHECK(recomputed && other);
    ls_runfile_release(&run);
}

/* Two machines with a slow link: tp groups stay inside, and a pipeline beats sums of gradients. */
LS_TEST(choice_follows_the_links)
{
    ls_mesh_choice_facts facts = facts_of(4, 2, 100000);
    ls_mesh_choice c;
    ls_run run;

    facts.between.ns_per_byte = 80; /* 0.1 Gbit/s */
    load(&run, "auto", "fast");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    check_why(&c, "dp=1 tp=4", "on several nodes");
    LS_CHECK(strstr(c.rows[0].mesh, "pp=2"));
    LS_CHECK(c.rows[0].exchange_ns < find(&c, "dp=4")->exchange_ns);
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
}

/* Pipelines that divide gradients and weights of their stages exchange in every micro-batch: what
 * that costs follows the links and the number of micro-batches, and slows down the ranks that wait. */
LS_TEST(choice_knows_what_pipelines_exchange)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zero-bubble"};
    ls_mesh_choice_facts near = facts_of(4, 4, 100000), ep_group = facts_of(4, 1, 100000);
    ls_mesh_choice a, b, few;
    ls_run run;

    load(&run, "auto", "fast");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &near, &a));
    LS_CHECK_OK(ls_mesh_choice_make(&run, &ep_group, &b));
    run.batch.leaf = run.batch.sequences / 2; /* one micro-batch of each line */
    LS_CHECK_OK(ls_mesh_choice_make(&run, &ep_group, &few));
    check_rows(&run, &few);
    for (size_t i = 0; i < LS_COUNT(schedules); i++) {
        const ls_mesh_choice_row *row[4], *slow[4];
        char mesh[LS_MESH_CHOICE_MESH];
        for (int zero = 1; zero < 4; zero++) {
            snprintf(mesh, sizeof mesh, "dp=2 zero=%d pp=2 %s", zero, schedules[i]);
            row[zero] = find(&a, mesh);
            slow[zero] = find(&b, mesh);
        }
        LS_CHECK(row[3]->exchange_ns > row[2]->exchange_ns);
        LS_CHECK(row[3]->exchange_ns < 0.05 * row[3]->step_ns);
        LS_CHECK(slow[3]->exchange_ns > 2 * slow[2]->exchange_ns);
        LS_CHECK(slow[2]->exchange_ns > 2 * slow[1]->exchange_ns);
        LS_CHECK(slow[3]->idle_ns > slow[1]->idle_ns);
        LS_CHECK_NEAR(slow[3]->work_ns, row[3]->work_ns, 0.05 * row[3]->work_ns);
        LS_CHECK(find(&few, mesh)->exchange_ns < 0.5 * slow[3]->exchange_ns);
    }
    ls_mesh_choice_release(&few);
    ls_mesh_choice_release(&b);
    ls_mesh_choice_release(&a);
    ls_runfile_release(&run);
}

static void load_model(ls_run *run, const char *model, const char *batch, const char *mesh)
{
    char text[700];
    int n = snprintf(text, sizeof text,
                     "model: {layers: 4, width: 256, heads: 8, %s}\n"
                     "data: {text: builtin:stories}\n"
                     "batch: %s\n"
                     "train: {steps: 10, reduce: fast}\n"
                     "mesh: %s\n"
                     "eval: {sample: \"\"}\n",
                     model, batch, mesh);

    LS_CHECK_OK(ls_runfile_load(
        run, &(ls_runfile_source){
                 .text = text, .len = (size_t)n, .no_environment = true, .no_files = true}));
}

/* One long sequence: a rank that does not share it has nothing to do. */
LS_TEST(choice_shares_a_long_sequence)
{
    ls_mesh_choice_facts facts = facts_of(4, 4, 100000);
    ls_mesh_choice c;
    ls_run run;

    load_model(&run, "family: llama, context: 4096", "{sequences: 1}",
               "{auto: true, tp: 1, pp: 1}");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    LS_CHECK(strcmp(c.rows[0].mesh, "dp=1 cp=4") == 0);
    LS_CHECK(find(&c, "dp=1 cp=4")->bytes < find(&c, "dp=4")->bytes); /* of activations a fourth */
    LS_CHECK(find(&c, "dp=1 cp=4")->step_ns < find(&c, "dp=2 cp=2")->step_ns);
    ls_mesh_choice_release(&c);
    /* Over a slow link too, if slowly. */
    facts = facts_of(4, 1, 100000);
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    LS_CHECK(find(&c, "dp=1 cp=4")->step_ns > 0);
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);

    load_model(&run, "family: llama, context: 100", "{sequences: 4}", "{auto: true, tp: 1, pp: 1}");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_why(&c, "dp=1 cp=4", "chunks of equal length");
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
}

/* Most weights are experts: where they do not fit, ranks divide them. */
LS_TEST(choice_divides_experts)
{
    ls_mesh_choice_facts facts = facts_of(4, 4, 100000);
    ls_mesh_choice c;
    ls_run run;

    load_model(&run, "family: mixtral, context: 64, mlp: 512, experts: 8, experts_used: 2",
               "{sequences: 8}", "{auto: true, zero: 0, tp: 1, pp: 1}");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    int64_t all = find(&c, "dp=4")->bytes, half = find(&c, "dp=4 ep=2")->bytes;
    int64_t few = find(&c, "dp=4 ep=4")->bytes; /* of experts; but rows of more ranks may come */
    LS_CHECK(few < all && half < all);
    LS_CHECK(find(&c, "dp=4 ep=2")->exchange_ns > 0);
    ls_mesh_choice_release(&c);
    facts.free_bytes = (ls_max_i64(few, half) + all) / 2;
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    LS_CHECK(strstr(c.rows[0].mesh, "dp=4 ep="));
    check_why(&c, "dp=4", "a rank needs ");
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);

    load_model(&run, "family: mixtral, context: 64, mlp: 512, experts: 8, experts_used: 2",
               "{sequences: 32}", "auto");
    facts = facts_of(4, 2, 100000);
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_why(&c, "dp=4 ep=4", "on several nodes");
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
}

/* What was chosen can be told to others and taken over; copies for those who die take memory. */
LS_TEST(choice_is_taken_over)
{
    ls_mesh_choice_facts facts = facts_of(4, 4, 100000);
    ls_mesh_choice c, taken;
    ls_run run, one;

    load(&run, "{auto: true, pp: 2}", "ordered");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    LS_CHECK_OK(ls_mesh_choice_adopt(c.rows[0].value, 4, &taken));
    LS_CHECK_EQ(taken.count, 1);
    LS_CHECK_STR(taken.rows[0].mesh, c.rows[0].mesh);
    one = run;
    ls_mesh_choice_apply(&taken, 0, &one);
    LS_CHECK_EQ(one.mesh.pp, 2);
    ls_mesh_choice_name(&taken.rows[0], 2);
    LS_CHECK(strncmp(taken.rows[0].mesh, "dp=1 ", 5) == 0);
    ls_mesh_choice_release(&taken);
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);

    load(&run, "auto", "fast");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    int64_t plain = find(&c, "dp=4 zero=1")->bytes, whole = find(&c, "dp=4")->bytes;
    int64_t mp_groups = find(&c, "dp=2 zero=1 tp=2")->bytes;
    ls_mesh_choice_release(&c);
    facts.heals = true;
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    LS_CHECK(find(&c, "dp=4 zero=1")->bytes > plain);
    LS_CHECK_EQ(find(&c, "dp=4")->bytes, whole);
    LS_CHECK(find(&c, "dp=2 zero=1 tp=2")->bytes > mp_groups);
    LS_CHECK(!find(&c, "dp=1 tp=2 cp=2")->why[0]); /* a rank that dies in it is replaced, too */
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
}

LS_TEST(choice_keeps_what_is_set)
{
    ls_mesh_choice_facts facts = facts_of(6, 6, 100000);
    ls_mesh_choice c;
    ls_run run;

    load(&run, "{auto: true, pp: 2, schedule: interleaved}", "ordered");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_rows(&run, &c);
    for (int i = 0; i < c.can; i++)
        LS_CHECK(strstr(c.rows[i].mesh, "pp=2 interleaved"));
    LS_CHECK_EQ(c.can, 4); /* zero 0 to 3; no tp groups in ordered mode */
    check_why(&c, "dp=1 tp=3 pp=2 interleaved", "");
    ls_mesh_choice_apply(&c, 0, &run);
    LS_CHECK_EQ(run.mesh.chunks, 2);
    LS_CHECK_EQ(run.batch.group, 1);
    LS_CHECK_EQ(run.train.recompute, LS_RECOMPUTE_AUTO);
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);

    load(&run, "{auto: true, pp: 4}", "ordered"); /* does not divide 6 */
    LS_CHECK_FAILS(ls_mesh_choice_make(&run, &facts, &c), LS_EUSAGE, "does not divide them");
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);

    load(&run, "auto", "ordered"); /* in ordered mode no bit may depend on the mesh */
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    check_why(&c, "dp=3 tp=2", "train.reduce: ordered");
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
}

LS_TEST(choice_is_printed_with_reasons)
{
    ls_mesh_choice_facts facts = facts_of(4, 2, 150);
    ls_mesh_choice c;
    ls_run run;
    ls_str text;

    ls_str_init(&text);
    load(&run, "auto", "ordered");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    ls_mesh_choice_tell(&c, 3, &text);
    LS_CHECK_OK(ls_str_status(&text));
    LS_CHECK(strstr(text.p, "mesh: auto, 4 ranks on 2 nodes, 150 MiB of memory and 40 Gflop/s for "
                            "each, 0.941 Gbit/s between nodes\n"));
    LS_CHECK(strstr(text.p, " ms ") && !strstr(text.p, "e+"));
    LS_CHECK(strstr(text.p, "\n> "));
    LS_CHECK(strstr(text.p, c.rows[0].mesh));
    LS_CHECK(strstr(text.p, " is taken: "));
    LS_CHECK(strstr(text.p, "a rank needs "));
    LS_CHECK(strstr(text.p, " more that need more memory\n"));
    LS_CHECK(strstr(text.p, " more: "));
    LS_CHECK(!strstr(text.p, "default: "));
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
    ls_str_release(&text);
}

/* Every reason is told once, whatever its numbers; one mesh is no choice. */
LS_TEST(choice_prints_a_reason_once)
{
    ls_mesh_choice_facts facts = facts_of(32, 32, 100000);
    ls_mesh_choice c;
    ls_run run;
    ls_str text;

    ls_str_init(&text);
    load(&run, "auto", "ordered");
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    ls_mesh_choice_tell(&c, 3, &text);
    const char *cut = strstr(text.p, "layers cannot be cut into ");
    LS_CHECK(cut && !strstr(cut + 1, "layers cannot be cut into "));
    LS_CHECK(!strstr(text.p, "more memory"));
    ls_mesh_choice_release(&c);
    facts = facts_of(1, 1, 100000);
    LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &c));
    LS_CHECK_EQ(c.count, 1);
    ls_str_clear(&text);
    ls_mesh_choice_tell(&c, 3, &text);
    LS_CHECK(strstr(text.p, "dp=1 is taken: there is no other\n"));
    ls_mesh_choice_release(&c);
    ls_runfile_release(&run);
    ls_str_release(&text);
}

/* Stages lie in windows: of whole pages, which a device may have larger ones of. */
LS_TEST(choice_counts_the_pages_of_the_device)
{
    ls_run run;
    int64_t bytes[2];

    load(&run, "auto", "ordered");
    for (int i = 0; i < 2; i++) {
        ls_mesh_choice_facts facts = facts_of(4, 4, 100000);
        ls_mesh_choice choice;
        facts.discrete = true;
        facts.page = i == 0 ? 4096 : 2 * LS_MIB;
        LS_CHECK_OK(ls_mesh_choice_make(&run, &facts, &choice));
        bytes[i] = find(&choice, "dp=2 pp=2 1f1b")->bytes;
        ls_mesh_choice_release(&choice);
    }
    LS_CHECK(bytes[1] > bytes[0] + 2 * LS_MIB);
    ls_runfile_release(&run);
}
