/* etcd.h -- keys that several machines agree on, kept by etcd 3.4 or later, through its JSON
 * gateway.
 *
 * Any member of the etcd cluster may be asked; one that does not answer, or has no leader, is
 * left for the next until the deadline. A transaction that was sent and not answered may have
 * been done: a caller that repeats it must be able to tell from the values. Texts only; one
 * thread per handle. */
#pragma once
#include "base/err.h"
#include "base/str.h"
#include "config/run.h"

LS_C_BEGIN

enum { LS_ETCD_URLS = LS_RUN_ETCD };

typedef struct ls_etcd ls_etcd;

/* urls: "http://10.0.0.1:2379"; borrowed until it is closed. No server is asked yet. LS_EUSAGE:
 * none, too many, or no URL; or libcurl is missing. */
ls_status ls_etcd_open(ls_etcd **etcd_out, const char *const *urls, int n_urls);
void ls_etcd_close(ls_etcd *etcd); /* NULL is allowed */

/* A lease: its keys are gone when it was not renewed for ttl_s seconds. LS_EPEER: it has run out.
 */
ls_status ls_etcd_lease(ls_etcd *etcd, int ttl_s, int64_t deadline_ns, int64_t *lease_out);
ls_status ls_etcd_renew(ls_etcd *etcd, int64_t lease, int64_t deadline_ns);
ls_status ls_etcd_end_lease(ls_etcd *etcd, int64_t lease, int64_t deadline_ns);

/* The value of a key; *found_out false: there is none. */
ls_status ls_etcd_get(ls_etcd *etcd, const char *key, int64_t deadline_ns, ls_str *value_out,
                      bool *found_out);

typedef struct ls_etcd_if {
    const char *key;
    const char *value; /* it must be this; NULL: there must be no such key */
} ls_etcd_if;

typedef struct ls_etcd_put {
    const char *key, *value;
    int64_t lease; /* 0: it stays */
} ls_etcd_put;

/* If all conditions hold, write all values, at once. *done_out false: they do not. */
ls_status ls_etcd_swap(ls_etcd *etcd, const ls_etcd_if *conditions, int n_conditions,
                       const ls_etcd_put *puts, int n_puts, int64_t deadline_ns, bool *done_out);

/* Base64 as JSON wants it. LS_EDATA: not such a text. */
void ls_etcd_encode64(const char *text, size_t len, ls_str *out);
ls_status ls_etcd_decode64(const char *text, ls_str *out);

LS_C_END
