/* SPDX-License-Identifier: MIT */
/*
 * Checked allocation. All of these return NULL when memory cannot be had (or a size overflows);
 * results are freed with free(). base/mem.c is the only file that calls malloc and its kin.
 * Thread-safe.
 */
#ifndef TB2_BASE_MEM_H
#define TB2_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/attr.h"
#include "base/err.h"

/* Frees what a `char *` or `uint8_t *` variable points to at the end of its scope. */
static inline void mem_free_auto_(void *pointer)
{
    void *held;
    memcpy(&held, pointer, sizeof(held));
    free(held);
}
#define AUTO_FREE CLEANUP(mem_free_auto_)

/* `len` zeroed bytes; a `len` of 0 gives a valid pointer. */
void *mem_zalloc(size_t len) MUST_USE;

/* Zeroed array of `count` elements of `size` bytes. */
void *mem_array(size_t count, size_t size) MUST_USE;

/*
 * Makes room for at least `need` elements of `size` bytes in the array at `*array` (a pointer to
 * a pointer), doubling `*capacity`. New room is zeroed. On failure the array is as it was.
 */
int mem_grow(void *array, size_t *capacity, size_t need, size_t size, struct err *e) MUST_USE;

/* Copies of a string, of its first `len` bytes (a terminator is added), of bytes. */
char *mem_strdup(const char *text) MUST_USE;
char *mem_strndup(const char *text, size_t len) MUST_USE;
void *mem_dup(const void *bytes, size_t len) MUST_USE;

/* printf into a new string; NULL when memory is short. */
char *mem_printf(const char *fmt, ...) PRINTF_LIKE(1, 2) MUST_USE;

/* Sums and products that say when they overflow (true = overflow, *out untouched). */
bool mem_add_u64(uint64_t a, uint64_t b, uint64_t *out) MUST_USE;
bool mem_mul_u64(uint64_t a, uint64_t b, uint64_t *out) MUST_USE;

/* `value` rounded up to a multiple of `unit` (a power of two); UINT64_MAX on overflow. */
uint64_t mem_round_up(uint64_t value, uint64_t unit);

/*
 * Test hook: the `nth` allocation from now on fails (1 = the next), once; 0 turns it off.
 * For tests only; affects the whole process.
 */
void mem_fail_nth(unsigned long nth);

#endif
