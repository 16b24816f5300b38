/* SPDX-License-Identifier: MIT */
#include "base/err.h"
