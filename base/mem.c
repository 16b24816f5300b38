/* SPDX-License-Identifier: MIT */
/* Checked allocation: the only caller of malloc and its kin, and so the place of the fault hook. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

/* The one mutable global besides the log sink: a test hook, 0 in every real run. */
static atomic_ulong fail_countdown;

void mem_fail_nth(unsigned long nth)
{
    atomic_store(&fail_countdown, nth);
}

static bool allocation_fails(void)
{
    unsigned long left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (left > 0) {
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1))
            return left == 1;
    }
    return false;
}

void *mem_zalloc(size_t len)
{
    if (allocation_fails())
        return NULL;
    return calloc(1, len > 0 ? len : 1);
}

void *mem_array(size_t count, size_t size)
{
    if (allocation_fails())
        return NULL;
    return calloc(count > 0 ? count : 1, size > 0 ? size : 1);
}

int mem_grow(void *array, size_t *capacity, size_t need, size_t size, struct err *e)
{
    if (need <= *capacity)
        return 0;
    size_t wanted = *capacity > 0 ? *capacity : 8;
    while (wanted < need) {
        if (wanted > SIZE_MAX / 2)
            return err_nomem(e, "array");
        wanted *= 2;
    }
    if (size > 0 && wanted > SIZE_MAX / size)
        return err_nomem(e, "array");
    void *old;
    memcpy(&old, array, sizeof(old));
    void *grown = allocation_fails() ? NULL : realloc(old, wanted * size);
    if (!grown)
        return err_nomem(e, "array");
    memset((char *)grown + *capacity * size, 0, (wanted - *capacity) * size);
    memcpy(array, &grown, sizeof(grown));
    *capacity = wanted;
    return 0;
}

void *mem_dup(const void *bytes, size_t len)
{
    void *copy = mem_zalloc(len);
    if (copy && len > 0)
        memcpy(copy, bytes, len);
    return copy;
}

char *mem_strndup(const char *text, size_t len)
{
    char *copy = mem_zalloc(len + 1);
    if (copy)
        memcpy(copy, text, len);
    return copy;
}

char *mem_strdup(const char *text)
{
    return mem_strndup(text, strlen(text));
}

char *mem_printf(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = len < 0 ? NULL : mem_zalloc((size_t)len + 1);
    if (text)
        vsnprintf(text, (size_t)len + 1, fmt, again);
    va_end(again);
    return text;
}

bool mem_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return true;
    *out = sum;
    return false;
}

bool mem_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return true;
    *out = product;
    return false;
}

uint64_t mem_round_up(uint64_t value, uint64_t unit)
{
    uint64_t sum;
    if (mem_add_u64(value, unit - 1, &sum))
        return UINT64_MAX;
    return sum & ~(unit - 1);
}
