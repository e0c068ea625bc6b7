/* test_cmd_doctor.c -- what the doctor says, how it is shown, and its exit code. */
#include "harness.h"
#include <jansson.h>
#include <sched.h>
#include "base/file.h"
#include "base/mem.h"
#include "cli/capture.h"
#include "cli/doctor/cmd_doctor.h"
#include "fake/fake.h"

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

#define RUN_FILE                                                           \
    "model: {family: gpt2, layers: 1, width: 16, heads: 2, context: 16}\n" \
    "data: {text: [builtin:stories]}\n"                                    \
    "batch: {sequences: 2}\n"                                              \
    "train: {steps: 2}\n"

/* --- how it is shown -------------------------------------------------------------------------- */

LS_TEST(doctor_shows_marks_sections_and_hints)
{
    ls_doctor *d = ls_mem_alloc(sizeof *d);
    ls_term term = {.width = 44};
    ls_str out;

    LS_CHECK(d);
    ls_str_init(&out);
    ls_doctor_say(d, "cores", "threads", LS_DOCTOR_OK, "threads: %d", 2);
    ls_doctor_value(d, 2);
    ls_doctor_say(d, "cores", "busy", LS_DOCTOR_NOTE,
                  "other processes use a good part of the machine");
    ls_doctor_say(d, "gpu", "clock", LS_DOCTOR_UNKNOWN, "clock: unknown");
    ls_fail(LS_EUSAGE, "the plugin is \"old\"");
    ls_err_hint("Build it again.");
    ls_doctor_say_error(d, "gpu", "device", LS_DOCTOR_PROBLEM);
    LS_CHECK_EQ(ls_err_last()->code, LS_OK);
    ls_doctor_text(d, &term, &out);
    LS_CHECK_STR(out.p, "cores\n"
                        "  ok       threads: 2\n"
                        "  note     other processes use a good part\n"
                        "           of the machine\n"
                        "gpu\n"
                        "  unknown  clock: unknown\n"
                        "  problem  the plugin is \"old\"\n"
                        "           Build it again.\n"
                        "\n"
                        "1 problem, 1 note\n");
    ls_str_clear(&out);
    term.color = true;
    ls_doctor_text(d, &term, &out);
    LS_CHECK(strstr(out.p, "\033[31mproblem\033[0m") && strstr(out.p, "\033[32mok     \033[0m"));
    ls_str_clear(&out);
    ls_doctor_json(d, &out);
    LS_CHECK_STR(out.p,
                 "{\"version\":\"" LS_VERSION "\",\"problems\":1,\"notes\":1,\"findings\":["
                 "{\"section\":\"cores\",\"name\":\"threads\",\"mark\":\"ok\",\"text\":\"threads: "
                 "2\",\"value\":2},"
                 "{\"section\":\"cores\",\"name\":\"busy\",\"mark\":\"note\",\"text\":\"other "
                 "processes use a good part of the machine\"},"
                 "{\"section\":\"gpu\",\"name\":\"clock\",\"mark\":\"unknown\",\"text\":\"clock: "
                 "unknown\"},"
                 "{\"section\":\"gpu\",\"name\":\"device\",\"mark\":\"problem\",\"text\":\"the "
                 "plugin is \\\"old\\\"\",\"hint\":\"Build it again.\"}]}\n");
    ls_str_release(&out);
    ls_mem_free(d);
}

/* --- what it finds ---------------------------------------------------------------------------- */

/* The finding of a name, which must be there exactly once. */
static json_t *finding(json_t *root, const char *section, const char *name)
{
    json_t *list = json_object_get(root, "findings"), *found = NULL, *f;
    size_t i;

    json_array_foreach(list, i, f)
    {
        if (strcmp(json_string_value(json_object_get(f, "section")), section) != 0 ||
            strcmp(json_string_value(json_object_get(f, "name")), name) != 0)
            continue;
        LS_CHECK(!found);
        found = f;
    }
    if (!found)
        ls_test_fail(__FILE__, __LINE__, "no finding \"%s\" in \"%s\"", name, section);
    return found;
}

static const char *text_of(json_t *root, const char *section, const char *name)
{
    return json_string_value(json_object_get(finding(root, section, name), "text"));
}

static const char *mark_of(json_t *root, const char *section, const char *name)
{
    return json_string_value(json_object_get(finding(root, section, name), "mark"));
}

static double value_of(json_t *root, const char *section, const char *name)
{
    return json_number_value(json_object_get(finding(root, section, name), "value"));
}

static json_t *parse(const ls_capture *c)
{
    json_error_t error;
    json_t *root = json_loads(c->out.p, JSON_REJECT_DUPLICATES, &error);

    if (!root)
        ls_test_fail(__FILE__, __LINE__, "%s in: %s", error.text, c->out.p);
    return root;
}

LS_TEST(doctor_reads_the_sensors_of_a_gpu)
{
    void *library = ls_fake_use("LINESHAFT_NVML", "libfake_nvml.so");
    int *mode = dlsym(library, "fake_nvml_mode");
    ls_doctor *d = ls_mem_alloc(sizeof *d);

    LS_CHECK(d && mode);
    ls_doctor_sensors(d, "0000:0b:00.0");
    LS_CHECK_EQ(d->count, 2);
    LS_CHECK_STR(d->findings[0].text,
                 "power: 612 of 700 W, 1485 of 1980 MHz, memory at 3201 MHz, 58 degrees; clocks "
                 "are held back by power limit, heat");
    LS_CHECK_STR(d->findings[1].text,
                 "memory errors since the driver was loaded: 5 corrected, 2 not");
    LS_CHECK_EQ(d->findings[1].mark, LS_DOCTOR_NOTE);
    *mode = 1;
    d->count = 0;
    ls_doctor_sensors(d, "");
    LS_CHECK_EQ(d->count, 3);
    for (int i = 0; i < 3; i++)
        LS_CHECK_EQ(d->findings[i].mark, LS_DOCTOR_UNKNOWN);
    LS_CHECK_EQ(setenv("LINESHAFT_NVML", "libnothing-ml.so.1", 1), 0);
    d->count = 0;
    ls_doctor_sensors(d, "");
    LS_CHECK_EQ(d->count, 1);
    LS_CHECK_STR(d->findings[0].text, "power, energy and memory errors are not known: there is no "
                                      "\"libnothing-ml.so.1\"");
    ls_mem_free(d);
}

LS_TEST(doctor_says_what_this_machine_is)
{
    static const char *const names[][2] = {
        {"cpu", "model"},    {"cpu", "instructions"}, {"cpu", "kernels"},
        {"cpu", "products"}, {"cores", "topology"},   {"cores", "affinity"},
        {"cores", "quota"},  {"cores", "threads"},    {"cores", "pinning"},
        {"cores", "busy"},   {"memory", "free"},      {"memory", "huge_pages"},
        {"gpu", "device"},   {"build", "version"},    {"build", "libraries"},
        {"disk", "free"},
    };
    ls_capture c;

    LS_CAPTURE(&c, "doctor", "--json", "--no-measure");
    json_t *root = parse(&c);
    for (size_t i = 0; i < LS_COUNT(names); i++)
        LS_CHECK(*text_of(root, names[i][0], names[i][1]));
    LS_CHECK_EQ(c.code, json_integer_value(json_object_get(root, "problems")) ? 1 : 0);
    LS_CHECK_EQ((int)value_of(root, "cores", "threads"), ls_test_cpu_threads());
    LS_CHECK(strstr(text_of(root, "build", "libraries"), "hwloc 2."));
    LS_CHECK(value_of(root, "disk", "free") > 0 && value_of(root, "memory", "free") > 0);
    json_decref(root);
    ls_capture_release(&c);
}

LS_TEST_SECONDS(doctor_measures_speeds, 60)
{
    ls_capture c;

    LS_CAPTURE(&c, "doctor", "--json");
    json_t *root = parse(&c);
    LS_CHECK(value_of(root, "speed", "fma_peak") > 1e8);
    LS_CHECK(*text_of(root, "speed", "bandwidth"));
    LS_CHECK(value_of(root, "cores", "busy") >= 0);
    json_decref(root);
    ls_capture_release(&c);
}

LS_TEST(doctor_names_a_mask_and_a_launcher)
{
    cpu_set_t one, all;
    int first = 0;
    ls_capture c;

    LS_CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2)
        ls_test_skip("needs two CPUs");
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    LS_CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("LOCAL_RANK", "1", 1);
    LS_CAPTURE(&c, "doctor", "--json", "--no-measure");
    json_t *root = parse(&c);
    LS_CHECK_STR(mark_of(root, "cores", "affinity"), "note");
    LS_CHECK_EQ((int)value_of(root, "cores", "affinity"), 1);
    LS_CHECK_EQ((int)value_of(root, "cores", "threads"), 1);
    LS_CHECK_STR(text_of(root, "cores", "ranks"),
                 "launcher: this is number 1 of 2 ranks on this node (LOCAL_WORLD_SIZE)");
    LS_CHECK(strstr(text_of(root, "cores", "pinning"), "not pinned"));
    json_decref(root);
    ls_capture_release(&c);
}

/* --- with a run ------------------------------------------------------------------------------- */

LS_TEST(doctor_of_a_valid_run)
{
    ls_capture c;

    put("run.yaml", RUN_FILE);
    LS_CAPTURE(&c, "doctor", "run.yaml", "--json", "--no-measure", "--set", "device.threads=3",
               "--set", "device.pin=off", "--set", "device.isa=generic");
    json_t *root = parse(&c);
    LS_CHECK_STR(mark_of(root, "run", "valid"), "ok");
    LS_CHECK(strstr(text_of(root, "run", "valid"), "\"run.yaml\" is valid: gpt2 with "));
    LS_CHECK(strstr(text_of(root, "run", "memory"), "weights "));
    LS_CHECK(value_of(root, "run", "memory") > 0 && value_of(root, "run", "disk") > 0);
    LS_CHECK_EQ((int)value_of(root, "cores", "threads"), 3);
    LS_CHECK(strstr(text_of(root, "cores", "threads"), "as device.threads says"));
    LS_CHECK_STR(text_of(root, "cores", "pinning"), "threads are not pinned: device.pin is off");
    LS_CHECK(strstr(text_of(root, "cpu", "kernels"), "kernels: generic (device.isa: generic)"));
    LS_CHECK(!ls_file_exists("runs")); /* looking changes nothing */
    json_decref(root);
    ls_capture_release(&c);
}

LS_TEST(doctor_of_a_run_that_is_wrong_or_too_large)
{
    ls_capture c;

    put("run.yaml", RUN_FILE "trian: {}\n");
    LS_CAPTURE(&c, "doctor", "run.yaml", "--no-measure");
    LS_CHECK_EQ(c.code, 1);
    LS_CHECK(strstr(c.out.p, "  problem  run.yaml:5:1: ") && strstr(c.out.p, "Did you mean"));
    LS_CHECK(strstr(c.out.p, "threads: ")); /* the rest is said all the same */
    LS_CHECK(strstr(c.err.p, "problem was found") || strstr(c.err.p, "problems were found"));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "doctor", "nowhere.yaml", "--no-measure");
    LS_CHECK_EQ(c.code, 1);
    LS_CHECK(strstr(c.out.p, "nowhere.yaml"));
    ls_capture_release(&c);
    put("run.yaml", RUN_FILE);
    LS_CAPTURE(&c, "doctor", "run.yaml", "--no-measure", "--json", "--set", "model.layers=1000",
               "--set", "model.width=65536", "--set", "model.heads=512");
    LS_CHECK_EQ(c.code, 1);
    json_t *root = parse(&c);
    LS_CHECK_STR(mark_of(root, "run", "memory"), "problem");
    LS_CHECK(strstr(text_of(root, "run", "memory"), "this run needs "));
    LS_CHECK_STR(mark_of(root, "run", "disk"), "problem");
    json_decref(root);
    ls_capture_release(&c);
}
