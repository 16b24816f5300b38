/* SPDX-License-Identifier: MIT */
#include "base/cancel.h"
