/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second core of ESP32, ESP32-S3 and ESP32-P4 as a task of ESP-IDF's FreeRTOS, pinned to the core that does not run
 * microc_port_cores_init(). Fork gives it a semaphore, join takes another one from it. The core that waits blocks, so that other
 * tasks run, and a forking task that moved to the worker's core gets its result, too. FreeRTOS orders the accesses to memory.
 *
 * A fork and a join wake a task of another core twice; each costs an interrupt between cores and a context switch.
 */
#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#include "microc_cores.h"

#ifdef CONFIG_FREERTOS_UNICORE
#error "this port needs two cores: remove CONFIG_FREERTOS_UNICORE, or compile the network with --cores 1"
#endif

/* Bytes of a task's stack for FreeRTOS: the frame of an interrupt and the registers of coprocessors (most on the ESP32-S3).
 * Interrupt handlers have a stack of their own. The board's file counts these bytes and the variables (static_bytes). */
#define FRAME_BYTES 1024u

static StackType_t stack[(MICROC_FORK_STACK_BYTES + FRAME_BYTES) / sizeof(StackType_t)];
static StaticTask_t task;
static StaticSemaphore_t work_available_buffer;
static StaticSemaphore_t done_buffer;
static SemaphoreHandle_t work_available;
static SemaphoreHandle_t done;
static TaskHandle_t worker;

static struct {
    void (*function)(const void *);
    const void *argument;
} job;

static void work(void *unused)
{
    (void)unused;
    for (;;) {
        (void)xSemaphoreTake(work_available, portMAX_DELAY);
        job.function(job.argument);
        (void)xSemaphoreGive(done);
    }
}

void microc_port_cores_init(void)
{
    work_available = xSemaphoreCreateBinaryStatic(&work_available_buffer);
    done = xSemaphoreCreateBinaryStatic(&done_buffer);
    worker = xTaskCreateStaticPinnedToCore(
        work, "microc", sizeof stack, NULL, uxTaskPriorityGet(NULL), stack, &task, 1 - xPortGetCoreID());
}

void microc_port_fork(void (*function)(const void *), const void *argument)
{
    job.function = function;
    job.argument = argument;
    (void)xSemaphoreGive(work_available);
}

void microc_port_join(void)
{
    (void)xSemaphoreTake(done, portMAX_DELAY);
}

/* FreeRTOS has painted the stack; frames of interrupts count. */
uint32_t microc_port_fork_stack_used(void)
{
    return (uint32_t)(sizeof stack - uxTaskGetStackHighWaterMark(worker) * sizeof(StackType_t));
}
