/* SPDX-License-Identifier: MIT */
#include "oci/oci.h"
