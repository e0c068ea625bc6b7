/* wire.h -- numbers in messages: little-endian, at any alignment. */
#pragma once
#include <endian.h>
#include "base/base.h"

static inline void ls_wire_put16(uint8_t *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, sizeof value);
}

static inline void ls_wire_put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static inline void ls_wire_put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

static inline uint16_t ls_wire_get16(const uint8_t *at)
{
    uint16_t value;

    memcpy(&value, at, sizeof value);
    return le16toh(value);
}

static inline uint32_t ls_wire_get32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static inline uint64_t ls_wire_get64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof value);
    return le64toh(value);
}
