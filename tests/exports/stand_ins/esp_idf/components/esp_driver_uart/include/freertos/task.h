/* SPDX-License-Identifier: Apache-2.0 */
unsigned uxTaskGetStackHighWaterMark(void *task);
