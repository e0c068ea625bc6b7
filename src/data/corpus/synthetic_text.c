/* synthetic_text.c -- a grammar of small stories.
 *
 * A plot is a row of beats; a beat is a text with alternatives, separated by '|'. Telling a story
 * casts it first (who, where, what: one draw per slot), then picks an alternative for each beat and
 * fills in the slots:
 *   {n}    the word in slot "n"; {N} the same with a capital letter
 *   {a:o}  slot "o" with its article: "a red kite", "an old map"
 * A beat that starts with '?' is left out half of the time; '/' ends a paragraph.
 * Example: "{N} had {a:o}.|{A:o} belonged to {n}." may become "Anna had an old map."
 *
 * Draws come from Philox with key (seed, number) and a counter, so any story can be told alone. */
#include "data/corpus/synthetic_text.h"

#include <ctype.h>
#include "base/rng.h"

typedef struct dice {
    ls_rng_key key;
    uint32_t count;
} dice;

static size_t roll(dice *d, size_t sides)
{
    return ls_rng_philox(d->key, d->count++, 0, 0, 0).v[0] % (uint32_t)sides;
}

/* One of the alternatives of a text; it ends at the next '|' or with the text. */
static const char *pick(dice *d, const char *text)
{
    size_t choices = 1;

    for (const char *p = text; *p; p++)
        choices += *p == '|';
    for (size_t choice = roll(d, choices); choice; choice--)
        text = strchr(text, '|') + 1;
    return text;
}

/* --- words ------------------------------------------------------------------------------------ */

static const char girls[] =
    "Anna|Lily|Mia|Rosa|Nora|Ella|Ruby|Clara|Ivy|Emma|June|Tess|Maya|Lucy|Alma|Zoe";
static const char boys[] =
    "Tom|Ben|Max|Leo|Sam|Finn|Jack|Oscar|Hugo|Noah|Eli|Theo|Paul|Omar|Adam|Felix";
static const char pets[] =
    "Pip|Hazel|Bramble|Moss|Clover|Biscuit|Pebble|Fern|Nutmeg|Button|Maple|Pepper";
static const char animals[] =
    "rabbit|fox|bear|mouse|duck|hedgehog|squirrel|otter|frog|badger|goat|owl|mole|lamb|beaver";
static const char natures[] =
    "kind|brave|quiet|curious|cheerful|clever|gentle|little|young|shy|merry|careful";
static const char times[] =
    "One morning|One sunny day|One windy afternoon|One cold day|Early one morning|On a warm "
    "evening|One day in spring|One day in autumn|Last summer|One quiet Sunday";
static const char colors[] =
    "red|blue|green|yellow|tiny|shiny|old|soft|round|purple|white|striped|bright|golden|silver|"
    "orange|little|pretty";
static const char things[] =
    "kite|ball|hat|boat|drum|scarf|bell|basket|lantern|book|whistle|spoon|wagon|puppet|ribbon|"
    "teapot|blanket|umbrella|map|button|key|coin|cup|flute";
static const char machines[] =
    "cart|boat|clock|chair|kite|music box|swing|sled|wheelbarrow|toy train|lamp|gate|drum|"
    "birdhouse|wagon";
static const char skills[] =
    "swim|whistle|ride a bicycle|skate|climb the big tree|bake bread|fly a kite|jump over the "
    "stream|paint a picture|sing a long song|dance|row a boat|catch a ball|read a map|play the "
    "drum|count to one hundred|make a paper bird|walk on stilts";
static const char foods[] =
    "big cake|bowl of berries|loaf of warm bread|bag of nuts|jar of honey|plate of pancakes|"
    "basket of plums|slice of cherry pie|pot of soup|box of cookies|ripe pear|round cheese";
static const char babies[] = "kitten|puppy|duckling|lamb|chick|foal|bird|turtle|piglet|mouse";
static const char troubles[] =
    "stuck in the mud|caught in a thorny bush|all alone by the road|cold and wet under a leaf|"
    "lost in the tall grass|trapped behind a fallen branch|too small to climb out of a hole";
static const char tools[] =
    "long branch|warm blanket|piece of rope|small basket|soft scarf|wooden board|straw hat";
static const char spots[] =
    "under the old bench|behind the tall fence|inside an empty basket|on top of the stone wall|"
    "between two big stones|under a pile of leaves|beside the well|in the long grass|behind a "
    "flower pot|under the apple tree|next to the gate|in a hollow log";
static const char rooms[] = "attic|cellar|barn|shed|kitchen|hall|stable|cupboard under the stairs";
static const char noises[] =
    "a soft tap|a long squeak|a low hum|a loud bump|a strange scratch|a slow creak";
static const char causes[] =
    "a sleepy owl|a small mouse with a nut|a cat who wanted some milk|a branch that touched the "
    "window|an old door in the wind|a hungry hedgehog|a tin cup that rolled on the floor";
static const char gifts[] =
    "a crown of daisies|a card with a big sun on it|a little wooden horse|a necklace of shells|a "
    "warm pair of socks|a song with three verses|a paper star|a tiny garden in a cup";
static const char weathers[] = "rain|snow|wind|hail|fog";
static const char glad[] = "happy|proud|glad|full of joy|pleased|delighted";
static const char sorry[] = "sad|worried|upset|unhappy|troubled|close to tears";

/* The name of a place begins behind the first blank. */
static const char places[] =
    "in the garden|in the park|in the forest|by the river|at the market|on the hill|by the lake|"
    "on the farm|on the beach|in the village|in the meadow|at the harbor|in the orchard|"
    "near the old mill|behind the school|by the bridge";

typedef struct grown_up {
    const char *name;
    bool woman;
} grown_up;
static const grown_up grown_ups[] = {
    {"Grandma", true},        {"Grandpa", false},        {"the baker", true},
    {"the gardener", false},  {"the old farmer", false}, {"the teacher", true},
    {"the fisherman", false}, {"Aunt Rose", true},       {"Uncle Will", false},
    {"the miller", false},    {"the shepherd", true},    {"the carpenter", true}};

/* --- plots ------------------------------------------------------------------------------------ */

#define OPENING                                                                \
    "{T}, {a:q} {k} named {n} went to {p}. |"                                  \
    "There was once {a:q} {k} named {n}. {H} lived near {p}. |"                \
    "{N} was {a:q} {k}. {H} loved to play {at}. |"                             \
    "Once upon a time, {a:q} {k} named {n} lived in a small house near {p}. |" \
    "In a house near {p} lived {a:q} {k}. {S} name was {n}. "

static const char *const lost[] = {
    OPENING,
    "{H} had {a:o}, and {h} took it everywhere. |{N} had {a:o}. It was a present from {g}. |The "
    "thing {h} liked best was {s} {o}. |Every day {h} took {s} {o} along. ",
    "?It was not new, but {h} would not trade it for anything. |?\"This is my treasure,\" {h} "
    "said. ",
    "/",
    "But that day the {o} was gone. |Then something bad happened. {H} looked down, and the {o} "
    "was not there. |When it was time to go home, {n} could not find the {o}. ",
    "\"Oh no!\" cried {n}. \"Where is my {o1}?\" |{N} looked here and there, but {h} saw "
    "nothing. |{H} felt {y}. |{N} sat down. {H} was {y}. ",
    "?{H} looked under a stone. {H} looked behind a tree. ",
    "/",
    "{F} came by and saw {m}. \"Why are you {y}?\" asked {f}. |Just then {s} friend {f} came "
    "along. \"What is wrong?\" asked {f}. |A friend heard {m}. It was {f}. \"Can I help you?\" "
    "{fh} asked. ",
    "\"I lost my {o},\" said {n}. |\"My {o} is gone,\" said {n}. \"I looked everywhere.\" ",
    "\"Do not worry,\" said {f}. \"We will look together.\" |\"Let us think,\" said {f}. \"Where "
    "did you play?\" |\"Two can see more than one,\" said {f}. ",
    "/",
    "They walked back to {p}, step by step. |So the two friends went back the way they came. |"
    "They looked to the left, and they looked to the right. ",
    "At last {f} saw something {c}. It was the {o}! |And there, {c}, was the {o}! |{F} pointed. "
    "\"Look!\" The {o} was {c}. ",
    "{N} was so {x} that {h} began to dance. |\"Thank you, {f}!\" said {n}. \"You are a good "
    "friend.\" |{N} hugged {f}. Now {h} was {x} again. ",
    "?From then on, {n} always looked twice before going home. |?And that evening they played "
    "with the {o} until the stars came out. ",
};

static const char *const learn[] = {
    OPENING,
    "More than anything, {n} wanted to {sk}. |{H} had one big wish. {H} wanted to {sk}. |All the "
    "others could {sk}, but {n} could not. |{N} saw {f} {sk}, and {h} wanted to do it too. ",
    "?\"It looks so easy,\" {h} said. |?{H} thought about it all day long. ",
    "/",
    "{H} tried once. It did not work. {H} tried again. It did not work. |The first time went "
    "wrong, and so did the second. |{N} tried and tried, but it was too hard. ",
    "\"I will never {sk},\" said {n}. {H} was {y}. |{H} sat down on a stone and felt {y}. |"
    "\"Maybe I am too small,\" {h} thought. ",
    "/",
    "Then {g} came by. \"I was small once too,\" said {g}. |{G} had seen it all. \"Come here,\" "
    "said {g}. |\"May I show you something?\" asked {g}. ",
    "{GH} showed {n} how to begin, slowly, one step at a time. |\"First you breathe,\" {gh} "
    "said. \"Then you try a little. Then you try a little more.\" |\"Nobody can {sk} on the "
    "first day,\" {gh} said. \"We will practice.\" ",
    "?So they practiced every day, in the sun and in the {w}. |?Day after day {n} practiced. "
    "Some days were good, and some days were not. ",
    "/",
    "And then, one day, it worked. {N} could {sk}! |On the seventh day {n} did it. {H} could "
    "{sk}! |\"Look at me!\" called {n}. \"I can {sk}!\" ",
    "{G} clapped {gs} hands. {N} was {x}. |{F} ran over and cheered. {N} was {x}. |{N} laughed "
    "out loud. {H} had never been so {x}. ",
    "?\"You did not give up,\" said {g}. \"That is how it is done.\" |?The next day {n} helped "
    "{f} to {sk} as well. ",
};

static const char *const broken[] = {
    OPENING,
    "{N} and {f} had {a:b}. |{H} had built {a:b} with {s} own hands. |{G} had given {m} {a:b}. |"
    "In the yard stood {a:b}, and {n} loved it. ",
    "?{N} used it every day. |?It was {q2} and a bit crooked, but it worked. ",
    "/",
    "But one day there was a loud crack. The {b1} was broken. |Then {n} pulled too hard, and the "
    "{b1} broke in two. |That night the {w} came, and in the morning the {b1} was broken. ",
    "\"I did not mean to do it,\" said {n} in a small voice. |{N} looked at the pieces. {H} was "
    "{y}. |\"What do we do now?\" asked {s} friend {f}. ",
    "/",
    "They brought the pieces to {g}. |{S} friend {f} had an idea. \"Let us ask {g}.\" |They put "
    "everything in a basket and went to {g}. ",
    "\"Let me see,\" said {g}. \"This can be mended.\" |{G} looked at it for a long time. \"Hand "
    "me the glue,\" {gh} said. |\"Everything breaks one day,\" said {g}. \"What matters is what "
    "we do next.\" ",
    "{N} held the wood, {f} held the string, and {g} did the rest. |{N} learned how to use a "
    "hammer, and {f} learned how to tie a knot. |They worked all afternoon, and nobody was in a "
    "hurry. ",
    "/",
    "In the end the {b1} was as good as new. |When they were done, the {b1} was even better than "
    "before. |\"There,\" said {g}. \"Now it will last.\" ",
    "{N} was {x}. \"Thank you,\" {h} said. |\"We did it together!\" said {f}. |{N} thanked {g} "
    "and ran home, {x}. ",
    "?After that, {n} knew how to mend things, and {h} helped others too. ",
};

static const char *const share[] = {
    OPENING,
    "{G} gave {m} {a:e}. |That day {h} had {a:e}, and it smelled very good. |{H} had worked "
    "hard, and {g} had given {m} {a:e}. ",
    "\"All of this is for me,\" thought {n}. |{N} could not wait to eat it. |{H} sat down and "
    "smiled. ",
    "/",
    "Then {f} came along. {FH} had nothing to eat. |But under a tree sat {f}, and {fh} looked "
    "hungry. |{F} stopped and looked at the food. \"I forgot my lunch,\" {fh} said. ",
    "{N} did not know what to do. {H} was hungry too. |At first {n} wanted to hide the food. |"
    "{N} looked at the food, and then {h} looked at {f}. ",
    "?\"If I share it,\" {h} thought, \"I will have less.\" ",
    "/",
    "But {f} looked so {y} that {n} moved over. \"Sit with me,\" {h} said. |Then {n} remembered "
    "what {g} always said. \"Food tastes best with a friend.\" |\"Here,\" said {n} at last. "
    "\"Half of it is yours.\" ",
    "They shared it, piece by piece, until nothing was left. |{F} took a bite and laughed. "
    "\"This is the best day,\" {fh} said. |They ate and talked and watched the clouds. ",
    "?The next day {f} came back with {a:o} for {n}. |?On the way home {f} showed {n} a secret "
    "path. ",
    "{N} was not hungry any more, and {h} was {x}. |And {n} was {x}, because {h} had a new "
    "friend. |Half of it had been enough, and {n} was {x}. ",
};

static const char *const rescue[] = {
    OPENING,
    "On the way home {h} heard a small sound. |{H} was picking flowers when {h} heard a cry. |"
    "{N} stopped. Something was calling for help. ",
    "It was a little {i}. It was {u}. |There {h} saw a little {i}, {u}. |{N} looked around and "
    "found a little {i}. The poor thing was {u}. ",
    "?\"Do not be afraid,\" said {n} softly. |?The {i} looked at {n} with big eyes. ",
    "/",
    "{N} wanted to help, but {h} could not do it alone. |{H} tried to reach the {i}, but {s} "
    "arms were too short. |\"I need help,\" thought {n}, and {h} ran to find {f}. ",
    "Soon {f} came with {a:l}. |{F} heard {m} call and brought {a:l}. |\"I know what to do,\" "
    "said {f}, and {fh} came back with {a:l}. ",
    "Slowly and carefully, they lifted the {i} out. |They worked together, and after a while the "
    "{i} was free. |{N} held one end, {f} held the other, and soon the {i} was safe. ",
    "/",
    "They gave it some water and kept it warm. |The {i} shook itself and looked much better. |"
    "\"Where is your mother?\" asked {f}. ",
    "Just then the mother came running. She was so {x}! |They carried it back to its mother "
    "{at}. |They found its mother {c}. She had looked for it all day. ",
    "{N} waved goodbye. {H} was tired, but {h} was {x}. |\"We did a good thing today,\" said "
    "{f}. |{N} and {f} walked home side by side, {x}. ",
    "?And whenever they came to {p}, the {i} ran out to greet them. ",
};

static const char *const gift[] = {
    OPENING,
    "It was the birthday of {f}, and {n} had no present. |Tomorrow was the birthday of {s} best "
    "friend {f}. |{F} was going to have a party, and {n} wanted to bring something special. ",
    "{H} had no money, and {h} was {y}. |{H} looked in {s} pockets. There was nothing but a "
    "button. |{H} went from shop to shop, but everything cost too much. ",
    "/",
    "\"Why do you look so {y}?\" asked {g}. |{G} saw {m} and sat down next to {m}. |So {n} asked "
    "{g} what to do. ",
    "\"The best gifts are made, not bought,\" said {g}. |\"Make something yourself,\" said {g}. "
    "\"I will help you.\" |\"Think of what {f} likes,\" said {g}, \"and start there.\" ",
    "/",
    "{N} worked until it was dark. {H} made {j}. |All afternoon {n} was busy. In the end {h} had "
    "{j}. |{H} took paper, wood and string, and little by little it became {j}. ",
    "?It was not perfect, but it was made with care. |?{H} wrapped it in {a:w2} cloth. ",
    "/",
    "At the party {n} was nervous. \"What if {fh} does not like it?\" {h} thought. |The next day "
    "{n} gave it to {f} with both hands. |{F} opened the box very slowly. ",
    "\"You made this for me?\" asked {f}. \"I love it!\" |{F} looked at it, and {fs} eyes began "
    "to shine. |\"It is the best present of all,\" said {f}. ",
    "Then there was cake for everyone, and {n} was {x}. |{N} was {x}, and so was {f}. |They sang "
    "and danced until the moon was high. ",
};

static const char *const scared[] = {
    OPENING,
    "One night {h} could not sleep. There was {z} in the {r}. |When it was dark, {h} heard {z}. "
    "It came from the {r}. |In the middle of the night {n} woke up. From the {r} came {z}. ",
    "\"Who is there?\" whispered {n}. Nobody answered. |{H} pulled the blanket over {s} head. |"
    "{S} heart went thump, thump, thump. ",
    "?There it was again, a little louder this time. ",
    "/",
    "{N} woke {f}. \"Did you hear that?\" |{F}, who was staying for the night, had heard it too. "
    "|{H} called for {g}, and {g} came with a candle. ",
    "\"Let us go and look,\" said {n}, although {h} was afraid. |\"I am scared,\" said {n}. "
    "\"But I want to know what it is.\" |{N} took {a:o} in one hand and the lamp in the other. ",
    "Step by step they went to the {r}. |They walked on their toes. The floor was cold. |Slowly, "
    "slowly, {n} opened the door of the {r}. ",
    "/",
    "And what did they see? It was only {v}! |There was no monster at all. It was {v}! |The "
    "light fell on the floor, and there was {v}. ",
    "{N} began to laugh. |\"Is that all?\" said {n}, and everybody laughed. |\"So it was you,\" "
    "said {n}. {H} was not afraid any more. ",
    "Then they went back to bed and slept until morning. |\"You were brave,\" said {g} the next "
    "day, and {n} was {x}. |After that, {n} was never afraid of the {r} again. ",
};

static const char *const picnic[] = {
    OPENING,
    "{N} and {f} had a plan. They wanted to have a picnic {at}. |\"Let us go to {p} and eat "
    "outside,\" said {n} to {f}. |{F} had {a:e}, and {n} had {a:o}. It was the perfect day for a "
    "picnic. ",
    "They walked and sang all the way. |It was a long walk, but they did not mind. |{F} carried "
    "the food, and {n} carried the blanket. ",
    "/",
    "But when they sat down, the sky turned gray. Then came the {w}. |Suddenly they felt the "
    "{w}. |\"Oh no,\" said {f}. \"Here comes the {w}!\" ",
    "\"Our picnic is ruined!\" said {n}. {H} was {y}. |They ran as fast as they could. |{N} held "
    "on to the blanket, and {f} held on to {n}. ",
    "/",
    "Near the road stood a house, and {g} opened the door. \"Come in, come in!\" |Then they met "
    "{g}. \"Come with me,\" said {g}. \"My house is warm.\" |{G} saw them and waved. \"You can "
    "stay with me,\" {gh} called. ",
    "They put the blanket on the floor and had their picnic there. |{G} made tea, and they all "
    "ate together. |Inside it was dry and warm, and {g} told them a funny story. ",
    "/",
    "When the {w} was over, the sun came out again. |After an hour the sky was blue. |Soon the "
    "sky was clear, and a bird began to sing. ",
    "\"It was the best picnic ever,\" said {n}, {x}. |{N} and {f} thanked {g} and ran home "
    "through the wet grass. |\"Next time,\" said {f}, \"we will plan a picnic inside.\" They all "
    "laughed. ",
};

typedef struct plot {
    const char *const *beats;
    size_t count;
} plot;
#define PLOT(beats)            \
    {                          \
        beats, LS_COUNT(beats) \
    }
static const plot plots[] = {PLOT(lost),   PLOT(learn), PLOT(broken), PLOT(share),
                             PLOT(rescue), PLOT(gift),  PLOT(scared), PLOT(picnic)};

/* --- casting ---------------------------------------------------------------------------------- */

enum { MOST_SLOTS = 40, MOST_PAIRS = 4, MOST_TEXT = 48 };

typedef struct cast {
    struct {
        const char *key, *text; /* the text ends at a '|' too */
    } slots[MOST_SLOTS];
    int count;
    char pairs[MOST_PAIRS][MOST_TEXT]; /* texts made of two words */
    int n_pairs;
} cast;

static void put(cast *c, const char *key, const char *text)
{
    LS_BUG_IF(c->count == MOST_SLOTS, "too many slots in a story");
    c->slots[c->count].key = key;
    c->slots[c->count].text = text;
    c->count++;
}

static void put_pair(cast *c, const char *key, const char *first, const char *second)
{
    LS_BUG_IF(c->n_pairs == MOST_PAIRS, "too many pairs of words in a story");
    char *text = c->pairs[c->n_pairs++];
    snprintf(text, MOST_TEXT, "%.*s %.*s", (int)strcspn(first, "|"), first,
             (int)strcspn(second, "|"), second);
    put(c, key, text);
}

/* Somebody with a name, a kind and pronouns, in the five slots that keys names. */
static void cast_somebody(cast *c, dice *d, const char *const keys[5], const char *avoid)
{
    bool woman = roll(d, 2) == 0, pet = roll(d, 3) == 0;
    const char *name = avoid;

    while (name == avoid)
        name = pet ? pick(d, pets) : woman ? pick(d, girls) : pick(d, boys);
    put(c, keys[0], name);
    put(c, keys[1], pet ? pick(d, animals) : woman ? "girl" : "boy");
    put(c, keys[2], woman ? "she" : "he");
    put(c, keys[3], woman ? "her" : "his");
    put(c, keys[4], woman ? "her" : "him");
}

static void cast_things(cast *c, dice *d)
{
    const char *thing = pick(d, things), *machine = pick(d, machines);
    const char *color = pick(d, colors);

    put_pair(c, "o", color, thing);
    put(c, "o1", thing);
    put_pair(c, "b", pick(d, colors), machine);
    put(c, "b1", machine);
    put(c, "e", pick(d, foods));
    put(c, "i", pick(d, babies));
    put(c, "u", pick(d, troubles));
    put(c, "l", pick(d, tools));
    put(c, "c", pick(d, spots));
    put(c, "r", pick(d, rooms));
    put(c, "z", pick(d, noises));
    put(c, "v", pick(d, causes));
    put(c, "j", pick(d, gifts));
    put(c, "w", pick(d, weathers));
    put(c, "w2", color);
    put(c, "sk", pick(d, skills));
    put(c, "x", pick(d, glad));
    put(c, "y", pick(d, sorry));
}

static void cast_story(cast *c, dice *d)
{
    static const char *const hero[] = {"n", "k", "h", "s", "m"};
    static const char *const friend[] = {"f", "fk", "fh", "fs", "fm"};

    c->count = c->n_pairs = 0;
    cast_somebody(c, d, hero, NULL);
    cast_somebody(c, d, friend, c->slots[0].text);
    const grown_up *g = &grown_ups[roll(d, LS_COUNT(grown_ups))];
    put(c, "g", g->name);
    put(c, "gh", g->woman ? "she" : "he");
    put(c, "gs", g->woman ? "her" : "his");
    const char *at = pick(d, places);
    put(c, "p", strchr(at, ' ') + 1);
    put(c, "at", at);
    put(c, "t", pick(d, times));
    put(c, "q", pick(d, natures));
    put(c, "q2", roll(d, 2) ? "small" : "old");
    cast_things(c, d);
}

/* --- telling ---------------------------------------------------------------------------------- */

static const char *slot_text(const cast *c, const char *key, size_t len)
{
    for (int i = 0; i < c->count; i++) {
        const char *has = c->slots[i].key;
        if (has[0] == (char)tolower((unsigned char)key[0]) && strncasecmp(has, key, len) == 0 &&
            has[len] == '\0')
            return c->slots[i].text;
    }
    LS_BUG_IF(true, "a story has no slot \"%.*s\"", (int)len, key);
    return "";
}

/* {key}, {Key}, {a:key}, {A:key}; a capital anywhere in front asks for a capital letter. */
static void fill_slot(ls_str *out, const cast *c, const char *key, size_t len)
{
    bool capital = isupper((unsigned char)key[0]) != 0, article = len > 2 && key[1] == ':';
    const char *text = slot_text(c, article ? key + 2 : key, article ? len - 2 : len);

    if (article) {
        ls_str_append(out, capital ? "A" : "a");
        ls_str_append(out, strchr("aeiou", text[0]) ? "n " : " ");
        capital = false;
    }
    ls_str_append_char(out, capital ? (char)toupper((unsigned char)text[0]) : text[0]);
    ls_str_append_bytes(out, text + 1, strcspn(text + 1, "|"));
}

static void fill(ls_str *out, const cast *c, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '{') {
            const char *slot = memchr(text + i, '{', len - i);
            size_t plain = slot ? (size_t)(slot - text) - i : len - i;
            ls_str_append_bytes(out, text + i, plain);
            i += plain - 1;
            continue;
        }
        size_t n = strcspn(text + i, "}");
        fill_slot(out, c, text + i + 1, n - 1);
        i += n;
    }
}

/* One alternative of a beat, or nothing. */
static void tell_beat(ls_str *out, const cast *c, dice *d, const char *beat)
{
    beat = pick(d, beat);
    if (*beat == '?') {
        if (roll(d, 2))
            return;
        beat++;
    }
    fill(out, c, beat, strcspn(beat, "|"));
}

static void end_paragraph(ls_str *out)
{
    while (out->len && out->p[out->len - 1] == ' ')
        out->p[--out->len] = '\0';
    ls_str_append_char(out, '\n');
}

ls_status ls_synthetic_text_story(uint64_t seed, int64_t number, ls_str *out)
{
    dice d = {.key = ls_rng_derive(seed, 0x73746f7279u, (uint64_t)number)};
    const plot *p = &plots[roll(&d, LS_COUNT(plots))];
    cast c;

    cast_story(&c, &d);
    for (size_t i = 0; i < p->count; i++) {
        if (strcmp(p->beats[i], "/") == 0)
            end_paragraph(out);
        else
            tell_beat(out, &c, &d, p->beats[i]);
    }
    end_paragraph(out);
    return ls_str_status(out);
}
