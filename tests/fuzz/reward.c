/* SPDX-License-Identifier: MIT */
/* What a guest wrote as its reward: a text, and the same bytes as a document. */
#include <math.h>

#include "bake/golden/internal.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    double reward = 0;
    bool found = false;
    int rc = golden_reward_text(&reward, data, size, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(isfinite(reward) && (rc == 0 || reward == 0));
    err_clear(&e);
    reward = 0;
    rc = golden_reward_json(&reward, &found, data, size, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(isfinite(reward) && (found || reward == 0) && (rc == 0 || !found));
    return 0;
}
