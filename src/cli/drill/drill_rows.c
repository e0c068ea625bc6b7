/* drill_rows.c -- the catalogue of `lineshaft drill`: what can go wrong with a run on purpose. */
#include "cli/drill/drill.h"

/* One line of what happens, then how; drill.h says what each member means. */
#define ROW(name_, what_, ...)                    \
    {                                             \
        .name = name_, .what = what_, __VA_ARGS__ \
    }
#define KILL(point, text)                           \
    ROW("kill." point, "kill -9 of one rank " text, \
        .plan = "rank=$R,step=$S,at=" point ",do=kill", .incident = "lost", .alone = true)
#define KILL_SURVIVOR(point, text)                                                          \
    ROW("kill." point, "kill -9 of one rank, and of a survivor " text,                      \
        .plan = "rank=$R,step=$S,at=backward,do=kill; rank=0,at=recover." point ",do=kill", \
        .incident = "lost")

const ls_drill_row ls_drill_rows[] = {
    KILL("load", "before it fetches a batch"),
    KILL("forward", "before its forward pass"),
    KILL("backward", "between forward and backward"),
    KILL("reduce", "while gradients are summed"),
    KILL("losses", "before losses are exchanged"),
    KILL("update", "in the middle of the update"),
    KILL("idle", "between two steps"),
    ROW("kill.gather", "kill -9 of one rank while new weights are gathered (mesh.zero: 1)",
        .plan = "rank=$R,at=gather,visit=7,do=kill", .sets = {"mesh.zero=1"}, .incident = "lost"),
    ROW("kill.first", "kill -9 of the first rank, which has the run folder",
        .plan = "rank=0,step=$S,at=backward,do=kill", .incident = "lost"),
    ROW("kill.two", "kill -9 of two ranks at once",
        .plan = "rank=0,step=$S,at=losses,do=kill; rank=$R,step=$S,at=losses,do=kill",
        .incident = "lost"),
    KILL_SURVIVOR("report", "before it reports"),
    KILL_SURVIVOR("meet", "before it connects to the others again"),
    KILL_SURVIVOR("transfer", "while the state is handed over"),
    KILL_SURVIVOR("ready", "before it says that it is ready"),
    ROW("kill.random", "kill -9 of a random rank at a random instant", .kind = LS_DRILL_RANDOM,
        .incident = "lost", .repeats = true),
    ROW("kill.agent", "kill -9 of the process that holds the ranks, then started again",
        .kind = LS_DRILL_AGENT, .alone = true),
    ROW("error.losses", "one rank fails with an error",
        .plan = "rank=$R,step=$S,at=losses,do=error", .incident = "lost", .alone = true),
    ROW("stall.short", "one rank stands still for 0.4 s: nothing may come of it",
        .plan = "rank=$R,step=$S,at=backward,do=stall,ms=400", .alone = true),
    ROW("stall.stop", "one rank is stopped (SIGSTOP) for ever; heal.wait is 2",
        .plan = "rank=$R,step=$S,at=losses,do=stop", .sets = {"heal.wait=2"}, .incident = "lost"),
    ROW("stall.pause",
        "one rank is stopped (SIGSTOP) for a second, then goes on: nothing may come of it",
        .kind = LS_DRILL_PAUSE, .alone = true),
    ROW("flip.weight", "one bit of a weight flips in the memory of one rank; heal.compare is 1",
        .plan = "rank=$R,step=$S,at=update,do=flip,tensor=*", .sets = {"heal.compare=1"},
        .incident = "corrupt", .whole = true),
    ROW("flip.gradient",
        "one bit of the summed gradient flips in the memory of one rank; heal.compare is 1",
        .plan = "rank=$R,step=$S,at=losses,do=flip,tensor=*", .sets = {"heal.compare=1"},
        .incident = "corrupt", .whole = true),
    ROW("preempt.term", "SIGTERM, then started again", .kind = LS_DRILL_TERM, .alone = true),
    ROW("save.kill", "kill -9 in a random moment of a save (heal.mode: off), then started again",
        .plan = "rank=$R,at=save.write,visit=$V,do=kill", .sets = {"heal.mode=off"}, .alone = true,
        .repeats = true),
    ROW("save.manifest", "kill -9 while a manifest is written (heal.mode: off), then started again",
        .plan = "rank=0,at=save.manifest,visit=2,do=kill", .sets = {"heal.mode=off"},
        .alone = true),
    ROW("save.torn", "a write of a save breaks off in the middle",
        .plan = "rank=$R,at=save.write,visit=2,do=torn", .incident = "checkpoint", .alone = true,
        .spoils = true),
    ROW("save.full", "the disk is full in a save", .plan = "rank=$R,at=save.write,visit=2,do=full",
        .incident = "checkpoint", .alone = true, .spoils = true),
    ROW("save.fsync", "what a save has written cannot be made durable, also the second time",
        .plan = "rank=$R,at=save.sync,visit=2,times=5,do=fsync", /* four are written at once */
        .incident = "checkpoint", .alone = true, .spoils = true),
    ROW("disk.object", "one bit of the newest checkpoint flips on disk, then started again",
        .kind = LS_DRILL_OBJECT, .alone = true),
    ROW("disk.manifest", "one bit of the newest manifest flips on disk, then started again",
        .kind = LS_DRILL_MANIFEST, .alone = true),
    ROW("link.slow", "two hosts: all that one rank sends is 5 ms late", .kind = LS_DRILL_BETWEEN,
        .plan = "rank=1,step=$S,at=link,do=slow,ms=5"),
    ROW("kill.host", "three hosts: kill -9 of the agent of the first, which coordinates",
        .kind = LS_DRILL_HOST, .plan = "rank=0,step=$S,at=losses,do=stall", /* until it is killed */
        .incident = "lost"),
    ROW("link.cut", "two hosts: the network of the second one goes down",
        .kind = LS_DRILL_UNPLUGGED, .incident = "lost"),
};
const int ls_drill_row_count = (int)LS_COUNT(ls_drill_rows);
