/* SPDX-License-Identifier: MIT */
/*
 * The only compiler extensions used by the project, all shared by gcc and clang.
 */
#ifndef TB2_BASE_ATTR_H
#define TB2_BASE_ATTR_H

#include <string.h>

/* The caller must look at the result: every function that can fail carries it. */
#define MUST_USE __attribute__((warn_unused_result))

/* printf-like: `fmt` and `first` are the 1-based positions of the format and its arguments. */
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))

/* Runs `fn(&variable)` when the variable leaves its scope. */
#define CLEANUP(fn) __attribute__((cleanup(fn)))

/* The parameter or function is not used in every build. */
#define UNUSED __attribute__((unused))

/*
 * Hands a pointer over: yields its value and leaves NULL behind, so that the scope's cleanup does
 * nothing. The only way in which ownership leaves an AUTO_* variable.
 */
#define MOVE(pointer)                                                                              \
    __extension__({                                                                                \
        __auto_type moved_ = (pointer);                                                            \
        (pointer) = NULL;                                                                          \
        moved_;                                                                                    \
    })

/* Number of elements of an array (not of a pointer). */
#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))

/*
 * Declares the cleanup function `AUTO_fn` for pointers to `struct tag` that are freed by `fn`,
 * which must accept NULL.
 */
#define DEFINE_AUTO(tag, fn)                                                                       \
    static inline void fn##_auto_(struct tag **pointer)                                            \
    {                                                                                              \
        fn(*pointer);                                                                              \
    }

#endif
