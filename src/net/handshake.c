/* handshake.c -- the handshake as a small state machine over a socket that does not block.
 *
 *   connecting side                         accepting side
 *   SAY_HELLO   -> HEAR_ANSWER              HEAR_HELLO  -> SAY_ANSWER
 *   HEAR_ANSWER -> SAY_PROOF (proof right)  SAY_ANSWER  -> HEAR_PROOF
 *   SAY_PROOF   -> DONE                     HEAR_PROOF  -> DONE (proof right)
 *
 * Each arrow is taken by advance(), when exactly the bytes of the state have been moved; the byte
 * counts are constants, so a stranger decides nothing about sizes.
 *
 * What is proved. The accepting side's proof covers label A, both hellos; the connecting side's
 * covers label C, both hellos and the first proof. A recorded proof is useless because the other
 * side draws a new nonce; a proof sent back to its maker is useless because the labels differ and
 * the role is a byte of the hello; one hello cannot be exchanged for another because both are
 * covered. Generation and purpose are compared after the proof, so that only a member of the job
 * learns what is expected; both sides can then say which generation the other is of.
 *
 * Rejected: TLS with a pre-shared key (about 3 round trips in practice and a record layer in the
 * way of zero-copy sends); sending the secret itself over a "trusted" network. */
#include "net/handshake.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include "base/time.h"
#include "net/secret.h"
#include "net/sock.h"
#include "net/wire.h"

static const uint8_t magic[4] = {'L', 's', 'h', '1'};
enum { VERSION = 1, ROLE_CONNECTS = 1, ROLE_ACCEPTS = 2, NONCE = 32 };
enum { SAY_HELLO, HEAR_ANSWER, SAY_PROOF, HEAR_HELLO, SAY_ANSWER, HEAR_PROOF, DONE };

/* Where things lie in a hello: magic 0, version 4, role 6, purpose 7, generation 8, from 16, to 20,
 * detail 24, nonce 32. */
enum { AT_VERSION = 4, AT_ROLE = 6, AT_PURPOSE = 7, AT_GENERATION = 8, AT_FROM = 16, AT_TO = 20 };
enum { AT_DETAIL = 24, AT_NONCE = 32 };
_Static_assert(AT_NONCE + NONCE == LS_HANDSHAKE_BYTES, "a hello is 64 bytes");

static const char label_accepts[] = "lineshaft hello 1, proof of the side that accepts";
static const char label_connects[] = "lineshaft hello 1, proof of the side that connects";
static const char label_key_up[] = "lineshaft hello 1, key of what the connecting side sends";
static const char label_key_down[] = "lineshaft hello 1, key of what the accepting side sends";

/* --- keys --- */

static ls_status proof_of(const ls_handshake *hello, bool connects,
                          uint8_t proof_out[LS_HANDSHAKE_PROOF])
{
    const char *label = connects ? label_connects : label_accepts;
    ls_mac_part parts[3] = {
        {label, strlen(label)},
        {hello->called, sizeof hello->called},
        /* The connecting side's proof covers the other's as well. */
        {hello->answer, connects ? sizeof hello->answer : LS_HANDSHAKE_BYTES},
    };

    return ls_mac_hmac(hello->args.secret, LS_SECRET_BYTES, parts, 3, proof_out);
}

static ls_status make_keys(ls_handshake *hello)
{
    ls_status st = LS_OK;
    uint8_t nonces[2 * NONCE], info[sizeof label_key_up + 2 * LS_HANDSHAKE_BYTES];
    ls_mac_part salt = {nonces, sizeof nonces}, secret = {hello->args.secret, LS_SECRET_BYTES};
    bool up = hello->args.connects;

    memcpy(nonces, hello->called + AT_NONCE, NONCE);
    memcpy(nonces + NONCE, hello->answer + AT_NONCE, NONCE);
    for (int i = 0; i < 2; i++) {
        const char *label = i == 0 ? label_key_up : label_key_down;
        size_t len = strlen(label);
        memcpy(info, label, len);
        memcpy(info + len, hello->called, LS_HANDSHAKE_BYTES);
        memcpy(info + len + LS_HANDSHAKE_BYTES, hello->answer, LS_HANDSHAKE_BYTES);
        ls_mac_part part = {info, len + 2 * LS_HANDSHAKE_BYTES};
        uint8_t *key = (i == 0) == up ? hello->send_key : hello->receive_key;
        LS_TRY(st, ls_mac_derive(salt, secret, part, key, LS_HANDSHAKE_KEY), out);
    }
out:
    return st;
}

/* --- hellos --- */

static ls_status write_hello(const ls_handshake *hello, uint64_t detail, uint8_t *out)
{
    const ls_handshake_side *self = &hello->args.self;

    memcpy(out, magic, sizeof magic);
    ls_wire_put16(out + AT_VERSION, VERSION);
    out[AT_ROLE] = hello->args.connects ? ROLE_CONNECTS : ROLE_ACCEPTS;
    out[AT_PURPOSE] = (uint8_t)self->purpose;
    ls_wire_put64(out + AT_GENERATION, self->generation);
    ls_wire_put32(out + AT_FROM, self->from);
    ls_wire_put32(out + AT_TO, self->to);
    ls_wire_put64(out + AT_DETAIL, detail);
    return ls_secret_random(out + AT_NONCE, NONCE);
}

/* What may be looked at before the proof: whether this is our protocol at all. */
static ls_status check_kind(const uint8_t *bytes, uint8_t role)
{
    unsigned version = ls_wire_get16(bytes + AT_VERSION);

    if (memcmp(bytes, magic, sizeof magic) != 0)
        return ls_fail(LS_EDATA, "what it sent is not a hello of this program");
    if (version != VERSION)
        return ls_fail(LS_EDATA, "it speaks version %u of the protocol, this side %d", version,
                       VERSION);
    if (bytes[AT_ROLE] != role)
        return ls_fail(LS_EDATA, "its hello is of the wrong direction");
    return LS_OK;
}

/* After the proof: the identity of the other side, and whether it is of this job's generation. */
static ls_status check_who(ls_handshake *hello, const uint8_t *bytes)
{
    const ls_handshake_side *self = &hello->args.self;
    ls_handshake_side who = {.purpose = (ls_handshake_purpose)bytes[AT_PURPOSE],
                             .generation = ls_wire_get64(bytes + AT_GENERATION),
                             .from = ls_wire_get32(bytes + AT_FROM),
                             .to = ls_wire_get32(bytes + AT_TO),
                             .detail = ls_wire_get64(bytes + AT_DETAIL)};

    if (who.purpose != self->purpose)
        return ls_fail(LS_EDATA, "it wants another kind of connection (%d, not %d)",
                       (int)who.purpose, (int)self->purpose);
    if (who.generation != self->generation)
        return ls_fail(LS_EDATA, "it is of generation %llu, this side of %llu",
                       (unsigned long long)who.generation, (unsigned long long)self->generation);
    hello->peer = who;
    return LS_OK;
}

static ls_status check_proof(const ls_handshake *hello, bool connects, const uint8_t *proof)
{
    uint8_t want[LS_HANDSHAKE_PROOF];
    ls_status st = proof_of(hello, connects, want);

    if (st == LS_OK && !ls_mac_equal(want, proof, sizeof want))
        st = ls_fail(LS_EDATA, "it does not know the secret of this job");
    explicit_bzero(want, sizeof want);
    return st;
}

/* --- states --- */

/* What each state moves: a number of bytes of ls_handshake from an offset on, in or out. */
#define FIELD(name) offsetof(ls_handshake, name), sizeof((ls_handshake *)0)->name
static const struct {
    size_t bytes_at, len;
    bool hears;
} states[] = {[SAY_HELLO] = {FIELD(called), false},  [HEAR_ANSWER] = {FIELD(answer), true},
              [SAY_PROOF] = {FIELD(proof), false},   [HEAR_HELLO] = {FIELD(called), true},
              [SAY_ANSWER] = {FIELD(answer), false}, [HEAR_PROOF] = {FIELD(proof), true},
              [DONE] = {FIELD(proof), false}};

static void enter(ls_handshake *hello, int state)
{
    hello->state = state;
    hello->at = 0;
    hello->len = states[state].len;
}

/* All bytes of the state were moved: judge them and take the arrow. */
static ls_status advance(ls_handshake *hello)
{
    ls_status st = LS_OK;

    switch (hello->state) {
    case SAY_HELLO:
        enter(hello, HEAR_ANSWER);
        break;
    case HEAR_ANSWER:
        LS_TRY(st, check_kind(hello->answer, ROLE_ACCEPTS), out);
        LS_TRY(st, check_proof(hello, false, hello->answer + LS_HANDSHAKE_BYTES), out);
        LS_TRY(st, proof_of(hello, true, hello->proof), out);
        enter(hello, SAY_PROOF);
        break;
    case SAY_PROOF: /* judged only now, so that the other side can say what is wrong as well */
        LS_TRY(st, check_who(hello, hello->answer), out);
        LS_TRY(st, make_keys(hello), out);
        enter(hello, DONE);
        break;
    case HEAR_HELLO:
        LS_TRY(st, check_kind(hello->called, ROLE_CONNECTS), out);
        LS_TRY(st, write_hello(hello, ls_wire_get64(hello->called + AT_DETAIL), hello->answer),
               out);
        LS_TRY(st, proof_of(hello, false, hello->answer + LS_HANDSHAKE_BYTES), out);
        enter(hello, SAY_ANSWER);
        break;
    case SAY_ANSWER:
        enter(hello, HEAR_PROOF);
        break;
    case HEAR_PROOF:
        LS_TRY(st, check_proof(hello, true, hello->proof), out);
        LS_TRY(st, check_who(hello, hello->called), out);
        LS_TRY(st, make_keys(hello), out);
        enter(hello, DONE);
        break;
    default:
        break;
    }
out:
    return st;
}

ls_status ls_handshake_begin(ls_handshake *hello, const ls_handshake_args *args)
{
    ls_status st = LS_OK;

    *hello = (ls_handshake){.args = *args};
    if (args->connects)
        LS_TRY(st, write_hello(hello, args->self.detail, hello->called), out);
    enter(hello, args->connects ? SAY_HELLO : HEAR_HELLO);
out:
    return st;
}

bool ls_handshake_heard(const ls_handshake *hello)
{
    return hello->state == HEAR_HELLO || hello->state == HEAR_ANSWER ? hello->at > 0
                                                                     : hello->state != SAY_HELLO;
}

int ls_handshake_events(const ls_handshake *hello)
{
    return states[hello->state].hears ? POLLIN : POLLOUT;
}

static ls_status gone(const ls_handshake *hello, ssize_t n)
{
    if (n < 0)
        return ls_fail_sys(LS_EIO, "the connection broke during the hello");
    if (hello->state == HEAR_PROOF)
        return ls_fail(LS_EIO,
                       "it closed the connection instead of proving that it knows the secret");
    return ls_fail(LS_EIO, "it closed the connection during the hello (%zu of %zu bytes)",
                   hello->at, hello->len);
}

ls_status ls_handshake_step(ls_handshake *hello, int fd, bool *done_out)
{
    *done_out = false;
    while (hello->state != DONE) {
        uint8_t *at = (uint8_t *)hello + states[hello->state].bytes_at + hello->at;
        size_t left = hello->len - hello->at;
        ssize_t n =
            states[hello->state].hears ? recv(fd, at, left, 0) : send(fd, at, left, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (ls_time_now_ns() < hello->args.deadline_ns)
                return LS_OK;
            return ls_fail(LS_EDEADLINE, "its hello did not come in time (%zu of %zu bytes)",
                           hello->at, hello->len);
        }
        if (n <= 0)
            return gone(hello, n);
        hello->at += (size_t)n;
        if (hello->at < hello->len)
            continue;
        ls_status st = advance(hello);
        if (st != LS_OK)
            return st;
    }
    *done_out = true;
    return LS_OK;
}

ls_status ls_handshake_run(ls_handshake *hello, int fd)
{
    for (;;) {
        bool done;
        ls_status st = ls_handshake_step(hello, fd, &done);
        if (st != LS_OK || done)
            return st;
        st = ls_sock_wait(fd, ls_handshake_events(hello), hello->args.deadline_ns);
        if (st != LS_OK && st != LS_EDEADLINE) /* the next step says that time is up */
            return st;
    }
}

void ls_handshake_release(ls_handshake *hello)
{
    explicit_bzero(hello, sizeof *hello);
}
